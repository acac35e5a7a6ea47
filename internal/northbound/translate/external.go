// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"
	"slices"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// KindExternal is the kind of the owners of external ports, which have the names of their VPCs. The VPC does not own them, so that a subnet that is
// missing does not hold up the router.
const KindExternal = "External"

const (
	keyExternalPort  = "port/"
	keyExternalRoute = "default-route/"
)

// ExternalOwner owns the ports of a VPC's router in external subnets, and the default routes through them.
func ExternalOwner(vpc string) desired.Owner { return desired.Owner{Kind: KindExternal, Name: vpc} }

// ExternalPortRef is the port of a VPC's router in an external subnet.
func ExternalPortRef(vpc, subnet string) desired.Ref {
	return desired.Ref{Owner: ExternalOwner(vpc), Key: keyExternalPort + subnet}
}

// ExternalRouteRef is the default route of a family through an external port, in the main table of a VPC's router.
func ExternalRouteRef(vpc string, family ipfamily.Family) desired.Ref {
	return desired.Ref{Owner: ExternalOwner(vpc), Key: keyExternalRoute + family.String()}
}

// ExternalEip is the name of the OvnEip with the addresses of a VPC's router in an external subnet. It is Kube-OVN's.
func ExternalEip(vpc, subnet string) string { return vpc + "-" + subnet }

// ExternalPort is the port of a VPC's router in an external subnet: an underlay subnet of the default VPC with a physical gateway. One chassis at a
// time hosts it.
type ExternalPort struct {
	Subnet string
	// CIDRs of the subnet, and Gateways, its physical routers, in the same order.
	CIDRs    []netip.Prefix
	Gateways []netip.Addr
	// Addresses of the port, at most one per CIDR, at least one.
	Addresses []netip.Addr
	MAC       net.HardwareAddr
	// Chassis that can host the port, at least one. The first one that works hosts it.
	Chassis []string
	// NameTaken is set if another object has one of the names of the ports.
	NameTaken bool
}

// Gateway returns the physical router of the address's family.
func (p ExternalPort) Gateway(address netip.Addr) netip.Addr { return like(p.Gateways, address) }

// ExternalInputs are the inputs of External.
type ExternalInputs struct {
	Vpc string
	// Ports in order of precedence: the default route of a family leads through the first port that has it.
	Ports []ExternalPort
	// Default are the families that get a default route.
	Default []ipfamily.Family
	// RouteTables are the tables of the VPC's router in addition to the main one.
	RouteTables []string
	// Routes are the user's. They replace default routes that compete with them.
	Routes []StaticRoute
	// Services are the CIDRs of Services that a custom VPC reaches by its gateway router.
	Services []netip.Prefix
}

// External returns the ports of a VPC's router in external subnets, the default routes through them, and policies that exempt Services from the policies
// of rules for external addresses.
func External(in ExternalInputs) []desired.Row {
	var rows []desired.Row
	for _, port := range in.Ports {
		rows = append(rows, externalPort(in.Vpc, port)...)
	}
	if len(rows) == 0 {
		return nil
	}
	for _, port := range in.Ports {
		rows = append(rows, in.neighbours(port)...)
	}
	for _, family := range in.Default {
		if hop := in.hop(family); hop.IsValid() {
			rows = append(rows, in.defaultRoutes(hop)...)
		}
	}
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		at := slices.IndexFunc(in.Services, func(p netip.Prefix) bool { return ipfamily.Of(p.Addr()) == family })
		if at < 0 {
			continue
		}
		any := in.Services[at].Addr()
		rows = append(rows, desired.Row{Key: "services/" + family.String(), Parent: &policies, Model: &nb.LogicalRouterPolicy{
			Priority: priorityServices, Match: matchIP("dst", any, prefixSet(in.Services, any)), Action: nb.LogicalRouterPolicyActionAllow,
		}})
	}
	return rows
}

// neighbours returns a route to the physical router of a port by itself. With it, ovn-northd makes a flow that sends neighbour solicitations for the router to the router's own
// multicast address. For a next hop of a policy alone, they go to the multicast address of the packet's destination, which the router does not listen to.
func (in ExternalInputs) neighbours(port ExternalPort) []desired.Row {
	routes := desired.RouterRoutes(RouterRef(in.Vpc))
	for _, address := range port.Addresses {
		hop := port.Gateway(address)
		if ipfamily.Of(address) != ipfamily.IPv6 || !hop.IsValid() {
			continue
		}
		route := StaticRoute{Prefix: netip.PrefixFrom(hop, hop.BitLen()), NextHop: hop}
		if slices.ContainsFunc(in.Routes, route.competes) {
			continue
		}
		return []desired.Row{{Key: "neighbour/" + port.Subnet, Model: route.model(), Parent: &routes}}
	}
	return nil
}

// hop returns the physical router to which the default route of a family leads; the zero Addr without a port that has the family.
func (in ExternalInputs) hop(family ipfamily.Family) netip.Addr {
	for _, port := range in.Ports {
		for _, address := range port.Addresses {
			if ipfamily.Of(address) == family {
				return port.Gateway(address)
			}
		}
	}
	return netip.Addr{}
}

// defaultRoutes returns the default routes to a next hop: one in each table, except where the user has one.
func (in ExternalInputs) defaultRoutes(hop netip.Addr) []desired.Row {
	routes := desired.RouterRoutes(RouterRef(in.Vpc))
	var rows []desired.Row
	for _, table := range append([]string{""}, in.RouteTables...) {
		route := StaticRoute{Prefix: ipfamily.Anywhere(hop), NextHop: hop, Table: table}
		if slices.ContainsFunc(in.Routes, route.competes) {
			continue
		}
		key := keyExternalRoute + ipfamily.Of(hop).String()
		if table != "" {
			key += "/" + table
		}
		rows = append(rows, desired.Row{Key: key, Model: route.model(), Parent: &routes})
	}
	return rows
}

// externalPort returns an external port with its peer and its chassis.
func externalPort(vpc string, p ExternalPort) []desired.Row {
	var networks []string
	for _, address := range p.Addresses {
		for _, cidr := range p.CIDRs {
			if cidr.Contains(address) {
				networks = append(networks, netip.PrefixFrom(address, cidr.Bits()).String())
			}
		}
	}
	onRouter, onSwitch := PortNames(vpc, p.Subnet, p.NameTaken)
	ref := ExternalPortRef(vpc, p.Subnet)
	peer := switchPort("switch-port/"+p.Subnet, SwitchRef(p.Subnet), onSwitch, onRouter)
	// The chassis that hosts the port announces the addresses of its translations, too.
	peer.Model.(*nb.LogicalSwitchPort).Options["nat-addresses"] = "router"
	rows := []desired.Row{routerPort(ref.Key, RouterRef(vpc), onRouter, networks, p.MAC, nil), peer}
	set := desired.PortChassis(ref)
	for i, chassis := range p.Chassis {
		rows = append(rows, desired.Row{Key: "chassis/" + p.Subnet + "/" + chassis, Parent: &set, Model: &nb.GatewayChassis{
			Name: onRouter + "_" + chassis, ChassisName: chassis, Priority: len(p.Chassis) - i,
		}})
	}
	return rows
}
