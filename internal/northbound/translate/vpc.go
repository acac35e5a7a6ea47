// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
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
	// RouteTables are those, beside the main one, in which ports of the router look routes up. They get the default routes, too.
	RouteTables []string
	// Routes and Policies are the user's, in any order, none of them twice.
	Routes   []StaticRoute
	Policies []PolicyRoute
	// Peerings are the links to other routers that both sides want.
	Peerings []Peering
}

// Vpc returns the logical router of a VPC, its routes and policies, its ports to peers and the load balancer group of its Services; and,
// where nodes are connected, the address sets of their own addresses, which nodes add themselves.
func Vpc(in VpcInputs) []desired.Row {
	rows := []desired.Row{
		{Key: keyRouter, Model: &nb.LogicalRouter{Name: in.Name, Options: routerOptions()}},
		{Key: keyServices, Model: &nb.LoadBalancerGroup{}}, // its name says who owns it: the engine's part
	}
	if in.Name == kubeovnv1.DefaultVpc {
		for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			set := NodesRef(in.Name, family)
			rows = append(rows, desired.Row{Key: set.Key, Model: &nb.AddressSet{Name: setName(set)}})
		}
	}
	rows = append(rows, defaultRoutes(in)...)
	rows = append(rows, staticRoutes(in)...)
	for _, policy := range in.Policies {
		rows = append(rows, policyRoutes(in.Name, policy)...)
	}
	for _, peering := range in.Peerings {
		rows = append(rows, peerPort(in.Name, peering))
	}
	return rows
}

// defaultRoutes lead to the default next hops, once in each route table. A user's default route takes the place of ours: beside it, half
// of the traffic would go each way.
func defaultRoutes(in VpcInputs) []desired.Row {
	routes := desired.RouterRoutes(RouterRef(in.Name))
	var rows []desired.Row
	for _, table := range append([]string{""}, in.RouteTables...) {
		for _, hop := range in.DefaultNextHops {
			ours := StaticRoute{Prefix: anywhere(hop), NextHop: hop, Table: table}
			if slices.ContainsFunc(in.Routes, ours.competes) {
				continue
			}
			key := "default-route/" + familyKey(hop)
			if table != "" {
				key += "/" + table
			}
			rows = append(rows, desired.Row{Key: key, Model: ours.model(), Parent: &routes})
		}
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
