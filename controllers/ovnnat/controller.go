// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ovnnat translates between addresses of OvnEips and of pods on the routers of VPCs, for OvnFips, OvnSnatRules and OvnDnatRules.
package ovnnat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// Reconciler writes the rows of rules for external addresses. A finalizer keeps a deleted rule until its rows are withdrawn, so that its OvnEip stays used.
type Reconciler struct {
	Client client.Client
	// Live reads OvnEips from the API server, not from the cache.
	Live       client.Reader
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Networks   *lookup.Networks
	Grants     *grants.Rules
	// Sets has the pods that EgressAddresses select.
	Sets     *podset.Index
	Recorder events.EventRecorder
	Gate     *reconciler.StartGate
	// MaxPodRules replaces maxPodRules if it is not zero.
	MaxPodRules int

	additions additions
	records   records
}

// controller is the Reconciler for one kind of rules.
type controller struct {
	*Reconciler

	kind string
	// contending has the rules by the sources and ports of pods that their current specs translate, in the form of lookup.InsideKey, and by their VPC, also of rules that are not
	// served.
	contending interest.Index[string, string]
}

// state is the outcome of an attempt to serve a spec of a rule.
type state struct {
	spec   lookup.NATSpec
	inside lookup.Inside
	eips   []netip.Addr // of the OvnEip
	pairs  []translate.NATPair
	// problem excludes the spec, missing describes an object that it waits for.
	problem *validation.Problem
	missing string
	// note is a part of the message of a served rule.
	note string
	// served: the rows are of the spec. retained: of the last valid spec, and the problem is of the current one. blocked: the spec waits for the end of connections
	// of a former translation, and the last valid spec is not applied meanwhile.
	served, retained, blocked bool
	// again: the spec waits for another owner to delete its rows, of which no event reports the deletion.
	again bool
	err   error
}

// Reconcile brings the rows of one rule up to date.
func (r *controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	object := lookup.EmptyNATRule(r.kind)
	err := r.Client.Get(ctx, req.NamespacedName, object)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("get %s: %w", r.kind, err)
	}
	if err != nil {
		r.contending.Set(req.Name)
		return ctrl.Result{}, r.withdraw(ctx, req.Name)
	}
	if object.GetDeletionTimestamp() != nil {
		r.contending.Set(req.Name)
		if err := r.withdraw(ctx, req.Name); err != nil {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, k8s.RemoveFinalizer(ctx, r.Client, object)
	}
	if err := k8s.AddFinalizer(ctx, r.Client, object); err != nil {
		return ctrl.Result{}, err
	}
	rule := lookup.NATRuleOf(object)
	r.contending.Set(req.Name)
	s := r.serve(ctx, rule, rule.Specs[0])
	if len(rule.Specs) > 1 && s.err == nil && !s.served && !s.blocked {
		kept := r.serve(ctx, rule, rule.Specs[1])
		if kept.served {
			kept.problem, kept.missing, kept.retained = s.problem, s.missing, true
			s = kept
		}
	}
	if s.err == nil && !s.served && !s.blocked {
		s.err = r.withdraw(ctx, req.Name)
	}
	if s.served && !s.retained {
		if err := r.label(ctx, rule, s); err != nil {
			return ctrl.Result{}, err
		}
	}
	result := ctrl.Result{}
	if s.again {
		result.RequeueAfter = occupiedRetry
	}
	return result, errors.Join(k8s.Unless(s.err, northbound.ErrWaiting), r.patchStatus(ctx, rule, s))
}

func (r *controller) withdraw(ctx context.Context, name string) error {
	if err := r.release(ctx, name, nil); err != nil {
		return err
	}
	if err := r.Northbound.Apply(ctx, translate.OvnNATOwner(r.kind, name), nil); err != nil {
		return fmt.Errorf("withdraw the rows: %w", err)
	}
	return nil
}

// serve applies a spec, unless it has a problem or waits: then nothing changes.
func (r *controller) serve(ctx context.Context, rule *lookup.NATRule, spec lookup.NATSpec) state {
	s, eip, at := r.judge(ctx, rule, spec, "")
	if s.problem == nil && s.missing == "" && s.err == nil {
		r.apply(ctx, rule, eip, at, &s)
	}
	return s
}

// judge returns whether a spec has a problem or waits, and where it translates. It disregards the rules of EgressAddresses for the pods at the port of an owner.
func (r *controller) judge(ctx context.Context, rule *lookup.NATRule, spec lookup.NATSpec, owner string) (s state, eip *kubeovnv1.OvnEip, at place) {
	s.spec, s.problem = spec, spec.Problem
	if s.problem != nil {
		return s, eip, at
	}
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Client, client.ObjectKey{Name: spec.Eip}, client.UnsafeDisableDeepCopy)
	if err != nil {
		s.err = fmt.Errorf("get OvnEip %s: %w", spec.Eip, err)
		return s, eip, at
	}
	if s.inside, s.problem, s.err = r.Networks.InsideOf(ctx, spec.NAT); s.problem != nil || s.err != nil {
		return s, eip, at
	}
	if s.inside.Vpc != "" { // the status can have another VPC
		r.contending.Add(rule.GetName(), "vpc/"+s.inside.Vpc)
	}
	if s.missing = s.inside.Missing; s.missing != "" {
		return s, eip, at
	}
	if eip == nil {
		s.missing = fmt.Sprintf("OvnEip %s, which does not exist: create it, or name another one", spec.Eip)
		return s, eip, at
	}
	if s.problem = lookup.DeletedEip(eip, spec.Last); s.problem != nil {
		return s, eip, at
	}
	subnet := lookup.ExternalOfEip(eip)
	if s.problem = r.checkType(eip, subnet, s.inside.Vpc); s.problem != nil {
		return s, eip, at
	}
	at = r.placeOf(eip, subnet, &s)
	if s.missing != "" {
		return s, eip, at // before claims are compared: these rules may be many
	}
	claim := rule.Claim(spec, s.inside, eip)
	if claim.Exits, s.err = r.exits(ctx, claim.Vpc); s.err != nil {
		return s, eip, at
	}
	for _, text := range lookup.InsideTexts(claim) {
		r.contending.Add(rule.GetName(), lookup.InsideKey(claim.Vpc, text))
	}
	others, err := r.Networks.ExternalClaims(ctx, claim, contested(rule))
	if err != nil {
		s.err = err
		return s, eip, at
	}
	if owner != "" {
		others = slices.DeleteFunc(others, func(c validation.ExternalClaim) bool { return c.EgressOf == owner })
	}
	s.problem = validation.ExternalConflict(claim, others)
	return s, eip, at
}

// contested returns the keys of the objects that a rule translates and that other rules may translate, too.
func contested(rule *lookup.NATRule) []string {
	return slices.DeleteFunc(rule.InsideKeys(), func(key string) bool { return len(key) > 4 && key[:4] == "vpc/" })
}

// checkType returns a problem if the addresses of an OvnEip cannot be used by a rule of this kind.
func (r *controller) checkType(eip *kubeovnv1.OvnEip, subnet, vpc string) *validation.Problem {
	switch kind := cmp.Or(eip.Spec.Type, kubeovnv1.OvnEipTypeNAT); {
	case kind == kubeovnv1.OvnEipTypeNAT:
		return nil
	case kind != kubeovnv1.OvnEipTypeLRP:
		return validation.Invalid("ovnEip: OvnEip %s is of type %s: name one of type %s", eip.Name, kind, kubeovnv1.OvnEipTypeNAT)
	case r.kind == translate.KindOvnFip:
		return validation.Invalid("ovnEip: OvnEip %s has the addresses of a router itself: name one of type %s", eip.Name, kubeovnv1.OvnEipTypeNAT)
	case eip.Name != translate.ExternalEip(vpc, subnet):
		return validation.Invalid("ovnEip: OvnEip %s has the addresses of another router: name OvnEip %s, or one of type %s",
			eip.Name, translate.ExternalEip(vpc, subnet), kubeovnv1.OvnEipTypeNAT)
	}
	return nil
}

// place is where a rule translates: in an external subnet, at the addresses of an OvnEip, on the port of a router.
type place struct {
	subnet     string
	allocation ipam.Allocation
	port       *nb.LogicalRouterPort
}

// placeOf finds the place of a rule, or records what it waits for.
func (r *controller) placeOf(eip *kubeovnv1.OvnEip, subnet string, s *state) place {
	allocation, held := r.Allocator.Lookup(translate.OvnEipHolder(eip.Name))
	port := northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.ExternalPortRef(s.inside.Vpc, subnet))
	switch {
	case !held:
		s.missing = fmt.Sprintf("OvnEip %s to have its addresses", eip.Name)
		if why, _ := k8s.WhyNotReady(eip.Status.Conditions, eip.Generation); why != "" {
			s.missing += ": " + why
		}
	case port == nil:
		s.eips = allocation.Addresses
		s.missing = fmt.Sprintf("VPC %s to have a port in external subnet %s: add the subnet to its extraExternalSubnets (or set enableExternal for subnet %s), "+
			"and see its condition %s", s.inside.Vpc, subnet, kubeovnv1.DefaultExternalSubnet, kubeovnv1.ConditionExternalReady)
	}
	return place{subnet, allocation, port}
}

// apply finds the rows of a spec without a problem of its own, and commits them.
func (r *controller) apply(ctx context.Context, rule *lookup.NATRule, eip *kubeovnv1.OvnEip, at place, s *state) {
	vpc, subnet := s.inside.Vpc, at.subnet
	s.eips = at.allocation.Addresses
	s.pairs = pairs(s.eips, s.inside.Internal, at.port)
	if len(s.pairs) == 0 {
		s.problem = validation.Invalid("ovnEip: OvnEip %s has %s in subnet %s, and %s is translated: OVN does not translate between IPv4 and IPv6, so one of them needs an address of the other's family",
			eip.Name, ipfamily.Join(s.eips), subnet, ipfamily.Join(s.inside.Internal))
		return
	}
	in := translate.OvnNATInputs{
		Kind: r.kind, Name: rule.GetName(), Vpc: vpc, Subnet: subnet, Protocol: s.spec.Protocol, ExternalPort: s.spec.ExternalPort, InternalPort: s.spec.InternalPort,
		Inside: vpc != kubeovnv1.DefaultVpc, // the switch of the external subnet has the default VPC's load balancers, and would translate before the router
	}
	in.Egress = rule.GetAnnotations()[kubeovnv1.EgressOfRule]
	if in.Routed, s.err = r.hops(ctx, rule, s.spec, vpc, subnet, s.pairs); s.err != nil {
		return
	}
	if s.spec.Distributed {
		if s.note, s.err = r.notOn(ctx, s.inside, subnet); s.err != nil {
			return
		}
		if s.note == "" {
			// The OvnEip's, as no tenant can choose it, and no other host of the external subnet has it.
			in.Port, in.MAC = s.inside.Port, at.allocation.MAC
		}
	}
	in.Pairs, in.Eip = s.pairs, eip.Name
	r.commit(ctx, rule, in, eip, s)
}

// commit replaces the rows of a rule. Translations that connections of a former translation contradict are left out.
func (r *controller) commit(ctx context.Context, rule *lookup.NATRule, in translate.OvnNATInputs, eip *kubeovnv1.OvnEip, s *state) {
	applied, rows := r.applied(rule.GetName()), translate.OvnNAT(in)
	if s.err = r.release(ctx, rule.GetName(), rows); s.err != nil {
		return
	}
	releasing := eip.Status.Releasing
	if added := without(translationsIn(rows), translationsOf(applied)); len(added) > 0 {
		// Records are the API server's: the cache may have the deletion of another rule, and not its record.
		r.contending.Add(rule.GetName(), releasingKey(eip.Name))
		// Before the records are read: an owner records its translations before it deletes their rows.
		owner, end := r.additions.begin(translate.OvnNATOwner(r.kind, rule.GetName()), added, func() string { return r.occupant(rule.GetName(), eip.Name, added) })
		defer end()
		live, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Live, client.ObjectKeyFromObject(eip))
		switch {
		case err != nil:
			s.err = fmt.Errorf("get OvnEip %s: %w", eip.Name, err)
			return
		case live == nil:
			s.missing = fmt.Sprintf("OvnEip %s, which does not exist: create it, or name another one", eip.Name)
			return
		}
		releasing = live.Status.Releasing
		awaited := pending(releasing, rule, s.spec.Last, added)
		if s.again = owner != ""; s.again {
			awaited = owner + " to withdraw its translations of OvnEip " + eip.Name
		}
		if awaited == "" {
			r.contending.Remove(rule.GetName(), releasingKey(eip.Name)) // each withdrawal of the OvnEip would enqueue the rule, and thousands can share it
		} else {
			s.missing, s.blocked = awaited, true
			in.Pairs = slices.DeleteFunc(slices.Clone(in.Pairs), func(p translate.NATPair) bool {
				return slices.ContainsFunc(added, func(t translate.Translation) bool { return t.Address == p.External })
			})
		}
	}
	again := resumed(releasing, translationsIn(translate.OvnNAT(in)))
	if in.Nodes, s.err = r.nodes(ctx, knownNodes(applied, again), in.Vpc, in.Subnet, podNode(in, s.inside)); s.err != nil {
		return
	}
	err := r.Northbound.Apply(ctx, translate.OvnNATOwner(r.kind, rule.GetName()), translate.OvnNAT(in))
	switch {
	case errors.Is(err, northbound.ErrWaiting):
		s.blocked = false
		s.missing = fmt.Sprintf("the router of VPC %s, or its port in subnet %s, to be applied", in.Vpc, in.Subnet)
	case err != nil:
		s.err = fmt.Errorf("apply the rows: %w", err)
	default:
		s.served = !s.blocked
		s.err = r.takeOver(ctx, eip, again, in.Nodes)
	}
}

// takeOver updates the records of translations that are applied again, with these nodes in the rows.
func (r *controller) takeOver(ctx context.Context, eip *kubeovnv1.OvnEip, again map[string]kubeovnv1.OvnEipRelease, nodes []string) error {
	if err := r.patchReleasing(ctx, eip, takenOver(again, nodes)); err != nil {
		return fmt.Errorf("update the records of former translations of OvnEip %s: %w", eip.Name, err)
	}
	return nil
}

// podNode returns the node of the pod if it translates; "" otherwise.
func podNode(in translate.OvnNATInputs, inside lookup.Inside) string {
	if in.Port == "" {
		return ""
	}
	return inside.Node
}

// pairs returns the external and the internal addresses of each family that both have, and that the router's port has.
func pairs(external []netip.Addr, internal []netip.Prefix, port *nb.LogicalRouterPort) []translate.NATPair {
	var pairs []translate.NATPair
	for _, address := range external {
		family := ipfamily.Of(address)
		onPort := slices.ContainsFunc(port.Networks, func(text string) bool {
			network, err := netip.ParsePrefix(text)
			return err == nil && ipfamily.Of(network.Addr()) == family
		})
		for _, prefix := range internal {
			if ipfamily.Of(prefix.Addr()) == family && onPort {
				pairs = append(pairs, translate.NATPair{External: address, Internal: prefix})
			}
		}
	}
	return pairs
}

// notOn returns why the node of a pod cannot translate; "" if it can. OVN would translate the packets there and drop them.
func (r *controller) notOn(ctx context.Context, inside lookup.Inside, name string) (string, error) {
	const instead = "; the node of the router's port translates instead"
	if inside.Node == "" {
		return "IP " + inside.Port + " has no running pod" + instead, nil
	}
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil || subnet == nil {
		return "", client.IgnoreNotFound(err)
	}
	vlan, err := k8s.Find[kubeovnv1.Vlan](ctx, r.Client, client.ObjectKey{Name: k8s.Applied(subnet).Spec.Vlan}, client.UnsafeDisableDeepCopy)
	if err != nil || vlan == nil {
		return "", client.IgnoreNotFound(err)
	}
	provider, err := k8s.Find[kubeovnv1.ProviderNetwork](ctx, r.Client, client.ObjectKey{Name: vlan.Spec.Provider}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("get ProviderNetwork %s: %w", vlan.Spec.Provider, err)
	}
	if provider == nil || !slices.Contains(provider.Status.ReadyNodes, inside.Node) {
		return fmt.Sprintf("node %s of the pod is not ready for ProviderNetwork %s%s", inside.Node, vlan.Spec.Provider, instead), nil
	}
	return "", nil
}
