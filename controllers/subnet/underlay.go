// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation"
)

// vlan returns the Vlan that a subnet names; nil if it does not exist, and for the empty name of an overlay subnet.
func (r *Reconciler) vlan(ctx context.Context, name string) (*kubeovnv1.Vlan, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // no Vlan is a state, not a failure
	}
	vlan, err := k8s.Find[kubeovnv1.Vlan](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get Vlan %s: %w", name, err)
	}
	return vlan, nil
}

// localnet returns the physical network of a subnet; nil for an overlay subnet. The error is northbound.ErrWaiting while the Vlan does not
// exist, or has no valid tag.
func (r *Reconciler) localnet(in inputs) (*translate.Localnet, error) {
	switch {
	case in.subnet.Spec.Vlan == "":
		return nil, nil //nolint:nilnil // an overlay subnet has none
	case in.vlan == nil:
		return nil, fmt.Errorf("%w: Vlan %s does not exist: create it", northbound.ErrWaiting, in.subnet.Spec.Vlan)
	}
	tag, valid := k8s.ValidTag(in.vlan)
	if !valid {
		return nil, fmt.Errorf("%w: %s", northbound.ErrWaiting, k8s.WhyNotValid("Vlan "+in.vlan.Name, in.vlan.Status.Conditions, in.vlan.Generation))
	}
	pod := northbound.Get[nb.LogicalSwitchPort](r.Northbound, translate.PodPortRef(translate.NamesakeOfLocalnet(in.subnet.Name)))
	return &translate.Localnet{Network: in.vlan.Spec.Provider, Tag: tag, NameTaken: pod != nil}, nil
}

// localnetPort returns the applied localnet port of a subnet, nil if it has none.
func (r *Reconciler) localnetPort(subnet string) *nb.LogicalSwitchPort {
	for _, ref := range translate.LocalnetRefs(subnet) {
		if port := northbound.Get[nb.LogicalSwitchPort](r.Northbound, ref); port != nil {
			return port
		}
	}
	return nil
}

// checkNetwork returns a problem if addresses of the subnet are in use and its network changes between OVN and a physical one, or from one
// physical network to another: the ports would lose their gateway. The network of a Vlan that does not exist is not known.
func (r *Reconciler) checkNetwork(in inputs) *validation.Problem {
	s, was := in.subnet, "an overlay subnet"
	network, known := r.appliedNetwork(in)
	switch {
	case !known:
		return nil
	case s.Spec.Vlan == "" && network != "":
		was = "an underlay subnet"
	case s.Spec.Vlan != "" && in.vlan == nil && network != "":
	case in.vlan != nil && network != "" && network != in.vlan.Spec.Provider:
		was = "in ProviderNetwork " + network
	case s.Spec.Vlan != "" && network == "":
	default:
		return nil
	}
	held := r.holders(s.Name, func(netip.Addr) bool { return true })
	switch {
	case len(held) == 0:
		return nil
	case s.Spec.Vlan != "" && in.vlan == nil && network != "":
		return validation.InUse("vlan: there is no Vlan %s, and addresses of the subnet are in use in ProviderNetwork %s: %s: write the former Vlan, "+
			"or create Vlan %s in this ProviderNetwork", s.Spec.Vlan, network, listed(held), s.Spec.Vlan)
	}
	return validation.InUse("vlan: the subnet is %s, and its addresses are in use: %s: delete their owners, or create another subnet", was, listed(held))
}

// appliedNetwork returns the ProviderNetwork of a subnet's ports, "" for an overlay subnet. known is false if it has no ports yet. Without rows,
// because the northbound database was lost, it is the network of the last valid spec.
func (r *Reconciler) appliedNetwork(in inputs) (network string, known bool) {
	last := in.subnet.Status.ValidatedSpec
	if localnet := r.localnetPort(in.subnet.Name); localnet != nil {
		return translate.NetworkOf(localnet), true
	}
	switch {
	case northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.RouterPortRef(in.subnet.Name)) != nil:
		return "", true
	case last != nil && last.Vlan == "":
		return "", true
	case in.lastVlan != nil:
		return in.lastVlan.Spec.Provider, true
	}
	return "", false
}

// onSameVlan returns the underlay subnets of other VPCs that use the Vlan of a subnet that overlap with CIDRs: their pods are on one physical network.
func (r *Reconciler) onSameVlan(ctx context.Context, s *kubeovnv1.Subnet, cidrs []netip.Prefix) ([]*kubeovnv1.Subnet, error) {
	if s.Spec.Vlan == "" {
		return nil, nil
	}
	list, err := r.Networks.SubnetsOfVlan(ctx, s.Spec.Vlan)
	if err != nil {
		return nil, err
	}
	var found []*kubeovnv1.Subnet
	for i := range list {
		if slices.ContainsFunc(lookup.Specs(&list[i]), func(peer *kubeovnv1.Subnet) bool {
			return lookup.VpcOf(peer) != lookup.VpcOf(s) && lookup.Overlaps(peer, cidrs)
		}) {
			found = append(found, &list[i])
		}
	}
	return found, nil
}

// vlanView is the part of a Vlan that its subnets depend on.
type vlanView struct {
	tag      int
	provider string
	valid    bool
	// why is the cause of an invalid Vlan.
	why string
}

func viewVlan(v *kubeovnv1.Vlan) vlanView {
	view := vlanView{provider: v.Spec.Provider}
	if view.tag, view.valid = k8s.ValidTag(v); !view.valid {
		view.why = k8s.WhyNotValid("", v.Status.Conditions, v.Generation)
	}
	return view
}

// onVlan enqueues the subnets of a Vlan.
func (r *Reconciler) onVlan(ctx context.Context, o client.Object) []reconcile.Request {
	return r.ofVlan(ctx, o.GetName(), func(*kubeovnv1.Subnet) bool { return true })
}

// ofVlan returns requests for the subnets of a Vlan that which selects.
func (r *Reconciler) ofVlan(ctx context.Context, vlan string, which func(*kubeovnv1.Subnet) bool) []reconcile.Request {
	subnets, err := r.Networks.SubnetsOfVlan(ctx, vlan)
	if err != nil {
		return nil // the cache is stopping
	}
	return requestsFor(subnets, which)
}

// hostsOf returns the addresses that nodes must reach outside of OVN and that a subnet must not contain to which nodes have a route through OVN.
func (in inputs) hostsOf() map[netip.Addr]string {
	if in.subnet.Spec.PhysicalGateway() || lookup.VpcOf(in.subnet) != kubeovnv1.DefaultVpc {
		return nil
	}
	return in.hosts
}

// newHosts returns the hosts of hostsOf outside of the applied CIDRs. Without a last valid spec, the CIDRs of the rows are applied: the process ended
// before it recorded the spec. The spec may be one that is only tried (grow).
func (r *Reconciler) newHosts(in inputs) map[netip.Addr]string {
	hosts, last := in.hostsOf(), in.subnet.Status.ValidatedSpec
	switch {
	case len(hosts) == 0:
		return nil
	case last == nil:
		if r.hasItsCIDRs(in.subnet, true) && r.appliedVpc(in.subnet) == kubeovnv1.DefaultVpc {
			return nil
		}
		return hosts
	case last.PhysicalGateway() || cmp.Or(last.Vpc, kubeovnv1.DefaultVpc) != kubeovnv1.DefaultVpc:
		return hosts
	}
	applied, _ := ipfamily.ParseCIDRs(last.CIDRBlock)
	outside := map[netip.Addr]string{}
	for address, host := range hosts {
		if !slices.ContainsFunc(applied, func(cidr netip.Prefix) bool { return cidr.Contains(address) }) {
			outside[address] = host
		}
	}
	return outside
}
