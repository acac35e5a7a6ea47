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
	keyExternalBFD   = "bfd/"
)

// monitorTable is a routing table that no port uses: names of tables of users begin with a letter or digit. OVN runs a BFD session only while a route names it.
const monitorTable = "_bfd"

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

// ExternalBFDRef is the BFD session between an external port of a VPC's router and a router of the physical network.
func ExternalBFDRef(vpc string, peer netip.Addr) desired.Ref {
	return desired.Ref{Owner: ExternalOwner(vpc), Key: keyExternalBFD + peer.String()}
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

// reaches reports whether the port has an address in the network of another address.
func (p ExternalPort) reaches(other netip.Addr) bool {
	return slices.ContainsFunc(p.CIDRs, func(cidr netip.Prefix) bool {
		return cidr.Contains(other) && slices.ContainsFunc(p.Addresses, cidr.Contains) && !slices.Contains(p.Addresses, other)
	})
}

// has reports whether the port has an address of a family.
func (p ExternalPort) has(family ipfamily.Family) bool {
	return slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return ipfamily.Of(a) == family })
}

// BFD are the settings of BFD sessions: intervals in milliseconds, and the number of missing packets that end a session.
type BFD struct{ MinTransmit, MinReceive, Multiplier int }

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
	// Routes are the user's. They replace default routes that compete with them. The monitored ones get BFD sessions with their next hops in external subnets.
	Routes []StaticRoute
	// MonitorGateways makes BFD sessions with the physical routers, on which default routes depend.
	MonitorGateways bool
	BFD             BFD
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
		for _, peer := range in.Peers(port) {
			rows = append(rows, in.session(port, peer)...)
		}
	}
	for _, family := range in.Default {
		if hop := in.hop(family); hop.IsValid() {
			rows = append(rows, in.defaultRoutes(hop, in.DependsOn(family) == hop)...)
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

// Peers returns the routers of the physical network with which a port has BFD sessions, without duplicates.
func (in ExternalInputs) Peers(port ExternalPort) []netip.Addr {
	var candidates, peers []netip.Addr
	if in.MonitorGateways {
		candidates = slices.Clone(port.Gateways)
	}
	for _, route := range in.Routes {
		if route.Monitored {
			candidates = append(candidates, route.NextHop)
		}
	}
	for _, peer := range candidates {
		if port.reaches(peer) && !slices.Contains(peers, peer) {
			peers = append(peers, peer)
		}
	}
	return peers
}

// session returns a BFD session, with a route that keeps it running and forwards no packets.
func (in ExternalInputs) session(port ExternalPort, peer netip.Addr) []desired.Row {
	onRouter, _ := PortNames(in.Vpc, port.Subnet, port.NameTaken)
	ref, routes := ExternalBFDRef(in.Vpc, peer), desired.RouterRoutes(RouterRef(in.Vpc))
	return []desired.Row{
		{Key: ref.Key, Model: &nb.BFD{
			LogicalPort: onRouter, DstIP: peer.String(), MinTx: new(in.BFD.MinTransmit), MinRx: new(in.BFD.MinReceive), DetectMult: new(in.BFD.Multiplier),
		}},
		{
			Key: "monitor/" + peer.String(), Parent: &routes, References: []desired.Reference{{Column: "bfd", To: []desired.Ref{ref}}},
			Model: StaticRoute{Prefix: netip.PrefixFrom(peer, peer.BitLen()), NextHop: peer, Table: monitorTable}.model(),
		},
	}
}

// DependsOn returns the physical router on whose BFD session the default route of a family depends; the zero Addr if it depends on none. With several external subnets
// of the family it does not: OVN drops packets without a route before it looks at policies, so the rules of the other subnets would fail, too.
func (in ExternalInputs) DependsOn(family ipfamily.Family) netip.Addr {
	ports := 0
	for _, port := range in.Ports {
		if port.has(family) {
			ports++
		}
	}
	if !in.MonitorGateways || ports != 1 {
		return netip.Addr{}
	}
	return in.hop(family)
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

// defaultRoutes returns the default routes to a next hop: one in each table, except where the user has one. Monitored ones depend on the BFD session with the next hop.
func (in ExternalInputs) defaultRoutes(hop netip.Addr, monitored bool) []desired.Row {
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
		row := desired.Row{Key: key, Model: route.model(), Parent: &routes}
		if monitored {
			row.References = []desired.Reference{{Column: "bfd", To: []desired.Ref{ExternalBFDRef(in.Vpc, hop)}, Optional: true}}
		}
		rows = append(rows, row)
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
