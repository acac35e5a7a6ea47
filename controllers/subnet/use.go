// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"cmp"
	"net/netip"
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation"
)

// maxNamed is the maximum number of used addresses in a message.
const maxNamed = 5

// checkUse returns a problem if the change would cut off ports that have addresses of the subnet. It does not check a network again that
// the allocator has already. Changes of the subnet `join` are allowed, because nodes get new addresses.
func (r *Reconciler) checkUse(in inputs, network validation.Network) *validation.Problem {
	s := in.subnet
	if s.Name == kubeovnv1.JoinSubnet {
		return nil
	}
	if was, is := r.appliedVpc(s), lookup.VpcOf(s); was != is {
		if held := r.holders(s.Name, func(netip.Addr) bool { return true }); len(held) > 0 {
			return validation.InUse("vpc cannot change from %s to %s while addresses are in use: %s: delete their owners, or create another subnet",
				was, is, listed(held))
		}
	}
	if problem := r.checkNetwork(in); problem != nil {
		return problem
	}
	if r.allocatorHas(s.Name, network) {
		return nil
	}
	return cutOff(s, network, r.holders(s.Name, func(a netip.Addr) bool { return !network.Assignable(a) }))
}

// appliedVpc returns the VPC whose router has the port of a subnet. Without rows, because the northbound database was lost or the subnet is
// new, it is the VPC of the applied spec.
func (r *Reconciler) appliedVpc(s *kubeovnv1.Subnet) string {
	if port := northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.RouterPortRef(s.Name)); port != nil {
		return translate.VpcOfRouterPort(port, s.Name)
	}
	return cmp.Or(cmp.Or(s.Status.ValidatedSpec, &s.Spec).Vpc, kubeovnv1.DefaultVpc)
}

// cutOff returns the problem of a network that cuts off the holders of addresses in held, nil if there are none.
func cutOff(s *kubeovnv1.Subnet, network validation.Network, held []ipam.Holder) *validation.Problem {
	out := slices.DeleteFunc(slices.Clone(held), func(h ipam.Holder) bool { return network.Contains(h.Address) })
	switch {
	case len(held) == 0:
		return nil
	case len(out) > 0:
		return validation.InUse("cidrBlock %s leaves out addresses in use: %s: delete their owners, or choose a cidrBlock that holds them",
			s.Spec.CIDRBlock, listed(out))
	}
	return validation.InUse("gateway is in use: %s: delete its owner, or choose another one", listed(held))
}

// holders returns the holders of addresses of a subnet that match, without those of the subnet itself.
func (r *Reconciler) holders(subnet string, meant func(netip.Addr) bool) []ipam.Holder {
	return slices.DeleteFunc(r.Allocator.Holders(subnet, meant), func(h ipam.Holder) bool { return isOwn(subnet, h.Port) })
}

// isOwn reports whether a holder is the subnet itself: its querier, or the router's port in it.
func isOwn(subnet, holder string) bool {
	return holder == translate.QuerierHolder(subnet) || holder == translate.InterconnectionHolder(subnet)
}

// listed returns a text with the first of the held addresses.
func listed(held []ipam.Holder) string { return k8s.Some(held, maxNamed) }
