// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/validation"
)

// inputs is the state from which an EgressAddress is applied.
type inputs struct {
	object  *kubeovnv1.EgressAddress
	problem *validation.Problem
	// spec is applied; nil if none was valid. set selects its pods.
	spec *kubeovnv1.EgressAddressSpec
	set  podset.Selector
	// addresses are the source addresses. conflict is an object with one of them.
	addresses []netip.Addr
	conflict  string
	// held names another EgressAddress whose router still has one of the addresses.
	held string
	// families has an address of each family in which packets are dropped while the source addresses are not known.
	families []netip.Addr
	// joined is the allocation of the router in the join subnet; full is set if the subnet has no address for it.
	join   join.Subnet
	joined ipam.Allocation
	full   string
	before gateway.Pair
	pick   join.Pick
	// eip is why the OvnEip has no addresses, and rules describes rules that are not applied; empty if there are none.
	eip, rules string
}

// gather reads the inputs. On error, the inputs are incomplete.
func (r *Reconciler) gather(ctx context.Context, in *inputs) error {
	_, in.problem = validation.EgressAddress(&in.object.Spec)
	if in.spec = k8s.AppliedEgress(in.object); in.spec == nil {
		return nil
	}
	in.set = podset.OfEgress(in.object, in.spec)
	if in.spec.OvnEip != "" {
		return r.gatherEip(ctx, in)
	}
	parsed, _ := validation.EgressAddress(in.spec)
	in.addresses = parsed.Addresses
	var err error
	if in.conflict, err = r.conflictOf(ctx, in.object, in.addresses); err != nil || in.conflict != "" {
		return err
	}
	if in.held = r.held(in.object.Name, in.addresses); in.held != "" {
		return nil
	}
	if in.join, err = join.Read(ctx, r.Client); err != nil {
		return err
	}
	in.joined, err = r.allocations.Allocation(ctx, in.object.Name, translate.EgressPort(in.object.Name), in.join)
	if errors.Is(err, ipam.ErrExhausted) { // a released address requeues the EgressAddress
		in.full = join.Full(err, "unused EgressAddresses, VPCs or nodes")
		return nil
	}
	if err != nil {
		return fmt.Errorf("allocate an address of subnet %s: %w", kubeovnv1.JoinSubnet, err)
	}
	in.pick, err = r.picker().Pick(ctx, "egressaddress", in.object.Name, in.before, parsed.Nodes)
	return err
}

// rows returns the inputs of the rows. Rules for the addresses of an OvnEip precede their policies, so that these drop only packets of pods without a rule.
func (in *inputs) rows(sets []podset.Selector) translate.EgressAddressInputs {
	out := translate.EgressAddressInputs{
		Name: in.object.Name, Addresses: append(slices.Clone(in.addresses), in.families...), Node: in.pick.Active, NextHops: in.pick.Hops, Joined: in.joined.Addresses, Gateways: in.join.Gateways,
	}
	for _, set := range sets {
		if set.HasRows() {
			out.Sets = append(out.Sets, set.Name())
		}
	}
	slices.Sort(out.Sets)
	return out
}

// missing returns the addresses of families that the join subnet does not have.
func (in *inputs) missing() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(in.addresses), func(a netip.Addr) bool {
		return slices.ContainsFunc(in.joined.Addresses, func(b netip.Addr) bool { return ipfamily.Of(a) == ipfamily.Of(b) })
	})
}

// conflictOf returns an object that has one of the addresses: an older EgressAddress, a subnet of the default VPC or an object with an allocation there, Services, a node, the API
// server, or the gateway of a subnet.
func (r *Reconciler) conflictOf(ctx context.Context, object *kubeovnv1.EgressAddress, addresses []netip.Addr) (string, error) {
	services, err := r.ServiceCIDRs.List(ctx)
	if err != nil {
		return "", err
	}
	for _, address := range addresses {
		var others kubeovnv1.EgressAddressList
		if err := r.Client.List(ctx, &others, client.MatchingFields{indexAddress: address.String()}, client.UnsafeDisableDeepCopy); err != nil {
			return "", fmt.Errorf("list EgressAddresses by address: %w", err)
		}
		for i := range others.Items {
			if other := &others.Items[i]; other.Name != object.Name && lookup.Precedes(other, object) {
				return fmt.Sprintf("%s: the older EgressAddress %s has it", address, other.Name), nil
			}
		}
		if with, err := r.inSubnet(ctx, address); err != nil || with != "" {
			return fmt.Sprintf("%s: %s has it", address, with), err
		}
		if i := slices.IndexFunc(services, func(p netip.Prefix) bool { return p.Contains(address) }); i >= 0 {
			return fmt.Sprintf("%s: the ClusterIPs %s have it", address, services[i]), nil
		}
		hosts, err := r.Networks.HostsIn(ctx, ipfamily.Hosts([]netip.Addr{address}))
		if err != nil {
			return "", err
		}
		if host := hosts[address]; host != "" {
			return fmt.Sprintf("%s: %s has it", address, host), nil
		}
		if with, err := r.translated(ctx, address); err != nil || with != "" {
			return fmt.Sprintf("%s: %s has it", address, with), err
		}
	}
	return "", nil
}

// inSubnet returns the subnet of the default VPC with an address, or the object that has an address there that the subnet excludes; empty if there is none.
func (r *Reconciler) inSubnet(ctx context.Context, address netip.Addr) (string, error) {
	subnets, err := r.Networks.AppliedAt(ctx, kubeovnv1.DefaultVpc, address)
	if err != nil {
		return "", err
	}
	for _, subnet := range subnets {
		if !excludes(subnet, address) {
			return "Subnet " + subnet.Name, nil
		}
		if port := r.Allocator.Holder(subnet.Name, address); port != "" {
			return port + " in Subnet " + subnet.Name, nil
		}
	}
	return "", nil
}

// translated returns a subnet whose gateway nodes translate to an address, or a Service whose load balancer has it; empty if there is none. An address that a Service only requests is
// no conflict: tenants write requests.
func (r *Reconciler) translated(ctx context.Context, address netip.Addr) (string, error) {
	if subnet, err := r.Networks.TranslatesTo(ctx, address); err != nil || subnet != "" {
		return "gatewayNode of Subnet " + subnet, err
	}
	services, err := lookup.ServicesAt(ctx, r.Client, address)
	if err != nil {
		return "", err
	}
	first := ""
	for _, s := range services {
		with := "the load balancer of Service " + client.ObjectKeyFromObject(s).String()
		if slices.Contains(svc.LoadBalancerAddresses(s), address) && (first == "" || with < first) {
			first = with
		}
	}
	return first, nil
}

// excludes reports whether a subnet is a physical network in which Kiln gives an address to no pod without a request: nodes may be in such a network.
func excludes(subnet *kubeovnv1.Subnet, address netip.Addr) bool {
	ranges, err := ipfamily.ParseRanges(subnet.Spec.ExcludeIPs)
	return err == nil && subnet.Spec.PhysicalGateway() && slices.ContainsFunc(ranges, func(r ipfamily.Range) bool { return r.Contains(address) })
}

// gatherEip reads the addresses of the OvnEip, and the rules of the pods.
func (r *Reconciler) gatherEip(ctx context.Context, in *inputs) error {
	name := in.spec.OvnEip
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("get OvnEip %s: %w", name, err)
	}
	if eip == nil {
		in.eip = "OvnEip " + name + " does not exist: create it, or name another one"
		return nil
	}
	if in.addresses = ipfamily.ValidAddrs(eip.Status.V4IP, eip.Status.V6IP); len(in.addresses) == 0 {
		in.eip = "OvnEip " + name + " has no addresses"
		if why, known := k8s.WhyNotReady(eip.Status.Conditions, eip.Generation); known {
			in.eip += ": " + why
		}
		return nil
	}
	rules, err := r.Networks.NATRulesOfKind(ctx, translate.KindOvnSnatRule, "eip/"+name)
	if err != nil {
		return err
	}
	failed, example := 0, ""
	for _, rule := range rules {
		why, known := k8s.WhyNotReady(*rule.Status.Conditions, rule.GetGeneration())
		if rule.GetAnnotations()[kubeovnv1.EgressOfRule] != in.object.Name || !known || why == "" {
			continue
		}
		if failed++; example == "" || rule.GetName() < example {
			example, in.rules = rule.GetName(), why
		}
	}
	if failed > 0 {
		in.rules = fmt.Sprintf("%d rules of pods are not applied: OvnSnatRule %s: %s", failed, example, in.rules)
	}
	return nil
}
