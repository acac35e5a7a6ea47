// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// VpcInputs are the inputs of Vpc.
type VpcInputs struct {
	Name string
	// DefaultNextHops receive the traffic for addresses in no subnet of the VPC, at most one per family. For the default VPC
	// they are the gateways of the join switch. Without a next hop of its family, such traffic is dropped.
	DefaultNextHops []netip.Addr
	// RouteTables are the tables, in addition to the main one, that ports of the router use. They get the default routes, too.
	RouteTables []string
	// Routes and Policies are the user's, in any order, without duplicates.
	Routes   []StaticRoute
	Policies []PolicyRoute
	// Peerings are the links to other routers that both VPCs request.
	Peerings []Peering
}

// Vpc returns the logical router of a VPC, its routes and policies, its ports to peers and the load balancer group of its
// Services. For the default VPC it also returns the address sets of the nodes' addresses and of those that pods share; the rows of nodes and the virtual
// ports add the addresses.
func Vpc(in VpcInputs) []desired.Row {
	rows := []desired.Row{
		{
			Key: keyRouter, Model: &nb.LogicalRouter{Name: in.Name, Options: routerOptions()},
			References: []desired.Reference{protectedBy(in.Name)},
		},
		{Key: keyServices, Model: &nb.LoadBalancerGroup{}}, // the engine sets its name, which records the owner
	}
	if in.Name == kubeovnv1.DefaultVpc {
		for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			for _, set := range []desired.Ref{NodesRef(in.Name, family), SharedRef(in.Name, family)} {
				rows = append(rows, desired.Row{Key: set.Key, Model: &nb.AddressSet{Name: setName(set)}})
			}
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

// defaultRoutes returns the routes to the default next hops, once in each route table. A user's default route replaces ours:
// with both, each would get half of the traffic.
func defaultRoutes(in VpcInputs) []desired.Row {
	routes := desired.RouterRoutes(RouterRef(in.Name))
	var rows []desired.Row
	for _, table := range append([]string{""}, in.RouteTables...) {
		for _, hop := range in.DefaultNextHops {
			ours := StaticRoute{Prefix: ipfamily.Anywhere(hop), NextHop: hop, Table: table}
			if slices.ContainsFunc(in.Routes, ours.competes) {
				continue
			}
			key := "default-route/" + ipfamily.Of(hop).String()
			if table != "" {
				key += "/" + table
			}
			rows = append(rows, desired.Row{Key: key, Model: ours.model(), Parent: &routes})
		}
	}
	return rows
}

// routerOptions are the options of every VPC's router (ovn-nb(5), Logical_Router options). Unused neighbours age out after 300
// s, neighbours that are other routers are resolved on demand, and the router does not learn from ARP requests for other
// addresses.
func routerOptions() map[string]string {
	return map[string]string{
		"mac_binding_age_threshold":     "300",
		"dynamic_neigh_routers":         "true",
		"always_learn_from_arp_request": "false",
	}
}
