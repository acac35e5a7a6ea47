// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/svc/assignment"
	"github.com/kiln-net/kiln/internal/validation"
)

// Reasons of the condition kubeovnv1.ConditionAddressAssigned of a Service of the class kubeovnv1.ClassOvnEip, in addition to package assignment and kubeovnv1.ReasonWaiting.
const (
	// ReasonDefaultVpc: nodes serve the Services of the default VPC.
	ReasonDefaultVpc = "DefaultVpc"
)

// outside is the outcome of a Service for clients outside. A Service of the class kubeovnv1.ClassOvnEip requests the addresses of an OvnEip. Each pass decides again whether the
// OvnEip lists the namespace, whether the router of the VPC has a port in its subnet, and which ports no other user of the OvnEip has. This controller, and not the one of pools,
// writes the addresses to the status: after the rows of the same pass are in the database.
type outside struct {
	// service is nil if it does not exist, or has another class.
	service *corev1.Service
	result  assignment.Result
	// claim is the claim to an OvnEip, with all ports of the spec; nil for none.
	claim *lookup.ServiceClaim
}

// refuse records why the Service has no address.
func (o *outside) refuse(reason, format string, args ...any) {
	o.result.Add(assignment.Problemf(reason, format, args...))
}

// external decides about the addresses of an OvnEip for a Service that is served in its VPC.
func (r *Reconciler) external(ctx context.Context, in *translate.ServiceInputs, out *outside) error {
	if out.service == nil {
		return nil
	}
	eip, allocation, err := r.requestedEip(ctx, in, out)
	if eip == nil || err != nil {
		return err
	}
	addresses, err := r.reachable(ctx, in, eip, allocation, out)
	if len(addresses) == 0 || err != nil {
		return err
	}
	key := client.ObjectKeyFromObject(in.Service)
	claim := claimOf(key, in.Service)
	claim.Eip, claim.Vpc, claim.Addresses, claim.Fronts = eip.Name, in.Vpc, addresses, frontsOf(in.Service)
	if eip.DeletionTimestamp != nil && !r.keeps(key, &claim, out) {
		return nil
	}
	out.claim = &claim
	free, err := r.free(ctx, key, &claim, out)
	if err != nil {
		return err
	}
	in.Eip, in.Addresses = eip.Name, addresses
	for _, front := range frontsOf(in.Service) {
		if free[front] {
			continue
		}
		for _, a := range addresses {
			in.Taken = append(in.Taken, translate.Front{Protocol: front.Protocol, Address: netip.AddrPortFrom(a, front.Port)})
		}
	}
	return nil
}

// keeps removes the ports from a claim that are not applied, because the OvnEip is being deleted: a new user would keep it. It reports whether the claim has others.
func (r *Reconciler) keeps(key types.NamespacedName, claim *lookup.ServiceClaim, out *outside) bool {
	applied, has := lastClaim(key, out.service, r.applied(key)), map[validation.Front]bool{}
	if applied.Eip == claim.Eip && applied.Vpc == claim.Vpc {
		for _, f := range applied.Fronts {
			has[f] = true
		}
	}
	before := len(claim.Fronts)
	claim.Fronts = slices.DeleteFunc(claim.Fronts, func(f validation.Front) bool { return !has[f] })
	if len(claim.Fronts) < before {
		out.refuse(assignment.ReasonAddressUnavailable, deletedEip, claim.Eip)
	}
	return len(claim.Fronts) > 0
}

const deletedEip = "OvnEip %s is being deleted: request an address of another one"

// requestedEip returns the OvnEip with the addresses that a Service requests, and its allocation; nil if it gets none. The text is the same for an OvnEip that does not exist and one
// that does not list the namespace.
func (r *Reconciler) requestedEip(ctx context.Context, in *translate.ServiceInputs, out *outside) (*kubeovnv1.OvnEip, ipam.Allocation, error) {
	s := in.Service
	requested, invalid := svc.Request(s)
	addresses := slices.DeleteFunc(requested[:], func(a netip.Addr) bool { return !a.IsValid() })
	switch {
	case in.Vpc == kubeovnv1.DefaultVpc:
		out.refuse(ReasonDefaultVpc, "the pods of the Service are in VPC %s, or it has none yet: class %s is for pods of other VPCs. Nodes serve the classes of pools in VPC %s",
			kubeovnv1.DefaultVpc, kubeovnv1.ClassOvnEip, kubeovnv1.DefaultVpc)
	case translate.Unserved(s, in.Vpc):
		out.refuse(ReasonNotServed, "the Service is headless, and has no load balancer: remove label %s", corev1.IsHeadlessService)
	case len(s.Spec.LoadBalancerSourceRanges) > 0:
		out.refuse(assignment.ReasonInvalidRequest, "spec.loadBalancerSourceRanges: the router of a VPC cannot filter clients by their addresses: remove the field, and select clients by policies of the pods")
	case invalid != nil:
		out.refuse(assignment.ReasonInvalidRequest, "%v", invalid)
	case len(addresses) == 0:
		out.refuse(assignment.ReasonInvalidRequest, "annotation %s is missing: write the address of an OvnEip that lists the namespace, or one of each family", kubeovnv1.AnnotationIPAddress.Key())
	}
	if len(out.result.Problems) > 0 {
		return nil, ipam.Allocation{}, nil
	}
	denied, err := r.Grants.Vpc(ctx, s.Namespace, in.Vpc)
	if err != nil {
		return nil, ipam.Allocation{}, err
	}
	if denied != "" {
		out.refuse(ReasonNotServed, "the Service is not served: %s", denied)
		return nil, ipam.Allocation{}, nil
	}
	eip, _, err := r.Grants.EipWith(ctx, s.Namespace, addresses)
	if err != nil {
		return nil, ipam.Allocation{}, fmt.Errorf("find the OvnEip: %w", err)
	}
	if eip == nil {
		out.refuse(assignment.ReasonAddressUnavailable, "no OvnEip has %s for namespace %s: request the addresses of one whose allowedNamespaces list the namespace, or ask an administrator for one",
			ipfamily.Join(addresses), s.Namespace)
		return nil, ipam.Allocation{}, nil
	}
	allocation, held := r.Allocator.Lookup(translate.OvnEipHolder(eip.Name))
	if !held {
		out.refuse(kubeovnv1.ReasonWaiting, "waiting for OvnEip %s to have its addresses", eip.Name)
		return nil, ipam.Allocation{}, nil
	}
	return eip, allocation, nil
}

// reachable returns the addresses of an OvnEip at which clients outside reach the Service: of its families, in an external subnet of the VPC.
func (r *Reconciler) reachable(ctx context.Context, in *translate.ServiceInputs, eip *kubeovnv1.OvnEip, allocation ipam.Allocation, out *outside) ([]netip.Addr, error) {
	port := northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.ExternalPortRef(in.Vpc, allocation.Subnet))
	if port == nil {
		out.refuse(kubeovnv1.ReasonWaiting, "waiting for Vpc %s, in which the pods of the Service are, to have a port in external subnet %s, which OvnEip %s is in: request an address in an external subnet of this Vpc, "+
			"or ask an administrator to add the subnet to its extraExternalSubnets", in.Vpc, allocation.Subnet, eip.Name)
		return nil, nil
	}
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, r.Client, client.ObjectKey{Name: in.Vpc}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get Vpc %s: %w", in.Vpc, err)
	}
	if vpc != nil {
		if subnets := lookup.ConnectedSubnets(vpc); len(subnets) > 1 && subnets[0] != allocation.Subnet {
			out.result.Notes = append(out.result.Notes, fmt.Sprintf("answers leave Vpc %s by external subnet %s, unless routes of the Vpc lead through subnet %s: other clients than hosts of subnet %s may get none",
				in.Vpc, subnets[0], allocation.Subnet, allocation.Subnet))
		}
	}
	var addresses []netip.Addr
	policy := in.Service.Spec.IPFamilyPolicy
	for _, family := range in.Service.Spec.IPFamilies {
		i := slices.IndexFunc(allocation.Addresses, func(a netip.Addr) bool { return ipfamily.Of(a).String() == string(family) && onPort(port, a) })
		switch {
		case i >= 0:
			addresses = append(addresses, allocation.Addresses[i])
		case policy == nil || *policy != corev1.IPFamilyPolicyPreferDualStack:
			out.refuse(assignment.ReasonFamilyMissing, "OvnEip %s, or the port of the VPC's router in subnet %s, has no %s address", eip.Name, allocation.Subnet, family)
		}
	}
	return addresses, nil
}

// onPort reports whether a router's port has the family of an address.
func onPort(port *nb.LogicalRouterPort, a netip.Addr) bool {
	return slices.ContainsFunc(port.Networks, func(text string) bool {
		network, err := netip.ParsePrefix(text)
		return err == nil && network.Addr().Is4() == a.Is4()
	})
}

// frontsOf returns the ports of a Service, sorted.
func frontsOf(s *corev1.Service) []validation.Front {
	fronts := make([]validation.Front, 0, len(s.Spec.Ports))
	for _, p := range s.Spec.Ports {
		fronts = append(fronts, validation.Front{Protocol: protocolOf(p), Port: uint16(p.Port)}) //nolint:gosec // the API server takes 1 to 65535
	}
	return sorted(fronts)
}

func sorted(fronts []validation.Front) []validation.Front {
	slices.SortFunc(fronts, func(a, b validation.Front) int {
		return cmp.Or(strings.Compare(string(a.Protocol), string(b.Protocol)), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(fronts)
}

// free returns the ports of a claim that no other user of the OvnEip has. An applied port precedes a new one, and otherwise the older object has the port.
func (r *Reconciler) free(ctx context.Context, key types.NamespacedName, claim *lookup.ServiceClaim, out *outside) (map[validation.Front]bool, error) {
	others, err := r.others(ctx, key, claim, out)
	if err != nil {
		return nil, err
	}
	free := map[validation.Front]bool{}
	for _, own := range r.claims(key, out) {
		if own.Eip != claim.Eip || own.Vpc != claim.Vpc {
			continue // rows that this pass replaces
		}
		fronts, problem := validation.ExternalFronts(own.ExternalClaim, others)
		if problem != nil {
			out.refuse(assignment.ReasonAddressInUse, "%s", problem.Message)
		}
		if !own.Last {
			if fronts, err = r.released(ctx, key, &own, fronts, out); err != nil {
				return nil, err
			}
		}
		for _, front := range fronts {
			free[front] = true
		}
	}
	return free, nil
}

// others records a claim, and then returns the claims of the other users of its OvnEip. So of two users at the same time, one at least knows the other.
func (r *Reconciler) others(ctx context.Context, key types.NamespacedName, claim *lookup.ServiceClaim, out *outside) ([]validation.ExternalClaim, error) {
	claim.Idle = slices.ContainsFunc(r.Networks.ServiceClaims.OfService(key), func(c lookup.ServiceClaim) bool {
		return c.Idle && c.Eip == claim.Eip && c.Vpc == claim.Vpc
	})
	for {
		r.record(key, out)
		others, err := r.Networks.ExternalClaims(ctx, claim.ExternalClaim, nil)
		if err != nil {
			return nil, fmt.Errorf("find the other users of OvnEip %s: %w", claim.Eip, err)
		}
		idle := !r.serves(key, claim) && claim.AppliedElsewhere(others)
		if claim.Idle == idle {
			return others, nil
		}
		claim.Idle = idle
	}
}

// serves reports whether the rows of a Service have the OvnEip of a claim, which may be nil, in its VPC.
func (r *Reconciler) serves(key types.NamespacedName, claim *lookup.ServiceClaim) bool {
	applied := r.applied(key)
	return claim != nil && applied.Eip == claim.Eip && applied.Vpc == claim.Vpc
}

// leaves reports whether the rows of a Service have an OvnEip, or are in a VPC, that it no longer claims.
func (r *Reconciler) leaves(key types.NamespacedName, out *outside) bool {
	return r.applied(key).Eip != "" && !r.serves(key, out.claim)
}

// released returns the new ports of a claim that do not wait until nodes have ended the connections of a former translation, nor are of an OvnEip that is being deleted. It reads
// the OvnEip from the API server: the cache may have the deletion of a rule, and not the record of its translation.
func (r *Reconciler) released(ctx context.Context, key types.NamespacedName, claim *lookup.ServiceClaim, fronts []validation.Front, out *outside) ([]validation.Front, error) {
	if len(fronts) == 0 {
		return nil, nil
	}
	r.awaiting.Set(key, claim.Eip)
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Live, client.ObjectKey{Name: claim.Eip})
	if err != nil {
		return nil, fmt.Errorf("get OvnEip %s: %w", claim.Eip, err)
	}
	if eip == nil || eip.DeletionTimestamp != nil {
		out.refuse(assignment.ReasonAddressUnavailable, deletedEip, claim.Eip)
		return nil, nil
	}
	var awaited []kubeovnv1.OvnEipRelease
	ready := slices.DeleteFunc(slices.Clone(fronts), func(front validation.Front) bool {
		before := len(awaited)
		for _, a := range ipfamily.ValidAddrs(eip.Status.V4IP, eip.Status.V6IP) { // of both families: a Service gets another one without a further wait
			awaited = append(awaited, lookup.Contradicting(eip.Status.Releasing, a, front)...)
		}
		return len(awaited) > before
	})
	if len(awaited) == 0 {
		r.awaiting.Set(key)
		return ready, nil
	}
	var nodes []string
	for _, release := range awaited {
		nodes = append(nodes, release.Nodes...)
	}
	slices.Sort(nodes)
	out.refuse(kubeovnv1.ReasonWaiting, "waiting for nodes %s to end connections of the former owner of %s: %s", strings.Join(slices.Compact(nodes), ", "), awaited[0].Address, lookup.UntilReleased(awaited))
	return ready, nil
}

// settle records which ports are applied, and writes the status. waiting: the rows are not written, because the router or the load balancers of the VPC do not exist yet.
func (r *Reconciler) settle(ctx context.Context, key types.NamespacedName, out *outside, waiting bool) error {
	r.record(key, out)
	if out.service == nil {
		return nil
	}
	if waiting {
		out.refuse(kubeovnv1.ReasonWaiting, "waiting for the VPC of the Service to be applied")
	}
	out.result.Mode = corev1.LoadBalancerIPModeProxy // nodes do not serve the addresses
	if out.claim != nil {
		applied := r.applied(key)
		for _, a := range out.claim.Addresses {
			if slices.ContainsFunc(applied.Fronts, func(f translate.Front) bool { return f.Address.Addr() == a }) {
				out.result.Addresses = append(out.result.Addresses, a)
			}
		}
	}
	if s := out.service; len(out.result.Addresses) > 0 && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		out.result.Notes = append(out.result.Notes, "externalTrafficPolicy Local and healthCheckNodePort have no effect: the router of the VPC serves the addresses, and pods see the addresses of clients")
	}
	err := out.result.Patch(ctx, r.Client, r.Recorder, out.service.DeepCopy())
	if apierrors.IsConflict(err) { // the event of the newer version, which may be of this pass, enqueues the Service
		return nil
	}
	return err
}
