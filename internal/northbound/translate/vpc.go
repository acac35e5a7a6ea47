// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"

	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// VpcInputs are what the logical router of a VPC follows from.
type VpcInputs struct {
	Name string
	// DefaultNextHops are where traffic leaves that no subnet of the VPC takes, at most one per family: for the default VPC the
	// gateways of the join switch. Without one, such traffic of the family is dropped.
	DefaultNextHops []netip.Addr
}

// Vpc returns the logical router of a VPC, its default routes and the load balancer group of its Services.
func Vpc(in VpcInputs) []desired.Row {
	rows := []desired.Row{
		{Key: keyRouter, Model: &nb.LogicalRouter{Name: in.Name, Options: routerOptions()}},
		{Key: keyServices, Model: &nb.LoadBalancerGroup{}}, // its name says who owns it: the engine's part
	}
	routes := desired.RouterRoutes(RouterRef(in.Name))
	for _, hop := range in.DefaultNextHops {
		rows = append(rows, desired.Row{
			Key: "default-route/" + familyKey(hop),
			Model: &nb.LogicalRouterStaticRoute{
				IPPrefix: anywhere(hop).String(),
				Nexthop:  hop.String(),
				Policy:   new(nb.LogicalRouterStaticRoutePolicyDstIP),
			},
			Parent: &routes,
		})
	}
	return rows
}

// routerOptions are those of every VPC's router (ovn-nb(5), Logical_Router options). Neighbours that nobody uses age out after
// 300 s, those of other routers are resolved on demand, and an ARP request from a stranger teaches the router nothing.
func routerOptions() map[string]string {
	return map[string]string{
		"mac_binding_age_threshold":     "300",
		"dynamic_neigh_routers":         "true",
		"always_learn_from_arp_request": "false",
	}
}

// anywhere is the prefix of every address in addr's family.
func anywhere(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// familyKey is the part of a row's key that tells the two families apart.
func familyKey(addr netip.Addr) string { return ipfamily.Of(addr).String() }
