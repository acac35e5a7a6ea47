// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// The link between a VPC's router and its gateway router has one address per side and family, the same in every VPC. They are
// prefixes of single addresses, so that the VPC loses no other address. The IPv4 ones are link-local (RFC 3927), the IPv6 ones
// in a unique local prefix (RFC 4193) drawn at random.
var (
	linkInner = []netip.Addr{netip.MustParseAddr("169.254.254.1"), netip.MustParseAddr("fd8c:6b69:6c6e::1")}
	linkOuter = []netip.Addr{netip.MustParseAddr("169.254.254.2"), netip.MustParseAddr("fd8c:6b69:6c6e::2")}
)

// TransitLink returns the addresses of the link between a VPC's router and its gateway router. No subnet of the VPC may contain
// them.
func TransitLink() []netip.Addr { return slices.Concat(linkInner, linkOuter) }

// transitTable is the gateway router's route table for packets from the VPC. Packets to the VPC use the main table, so that the
// routes of the two directions never conflict, whatever addresses the VPC has.
const transitTable = "out"

// Keys of the rows of Transit.
const (
	keyTransitRouter = "router"
	keyTransitSwitch = "switch"
	keyTransitJoin   = "join"
)

// TransitInputs are the inputs of Transit.
type TransitInputs struct {
	Vpc string
	// Node is the node whose chassis hosts the gateway router.
	Node string
	// NextHops are the node's addresses on the join switch. Addresses and MAC are the gateway router's there. All have one
	// address per family.
	NextHops  []netip.Addr
	Addresses []netip.Addr
	MAC       net.HardwareAddr
	// Services are the CIDRs of Services.
	Services []netip.Prefix
	// Outgoing are the CIDRs of the VPC's subnets with natOutgoing.
	Outgoing []netip.Prefix
	// RouteTables are the tables of the VPC's router in addition to the main one.
	RouteTables []string
	// Routes are the user's. They replace generated routes that compete with them.
	Routes []StaticRoute
	// External are the families whose default routes lead through external ports of the VPC's router.
	External []ipfamily.Family
}

// transitNames are the names of a VPC's gateway router, of the switch between it and the VPC's router, and of their ports.
// They contain an underscore, which names of Kubernetes objects do not; in other port names the text after an underscore is
// hexadecimal or an address family.
type transitNames struct {
	router, network string
	// Ports of the VPC's router (inner) and of the gateway router (outer to the VPC, join to the join switch), and their peers
	// on the switches.
	inner, outer, join                   string
	innerOnSwitch, outerOnSwitch, onJoin string
}

func namesOfTransit(vpc string) transitNames {
	router, network := vpc+"_gateway", vpc+"_transit"
	return transitNames{
		router: router, network: network,
		inner: vpc + "-" + network, innerOnSwitch: network + "-" + vpc,
		outer: router + "-" + network, outerOnSwitch: network + "-" + router,
		join: router + "-" + kubeovnv1.JoinSubnet, onJoin: TransitPort(vpc),
	}
}

// TransitPort is the name of the join switch's port to a VPC's gateway router.
func TransitPort(vpc string) string { return kubeovnv1.JoinSubnet + "-" + vpc + "_gateway" }

// Transit returns the gateway router of a VPC on a node, the switch between it and the VPC's router, and the routes and
// policies of both. All traffic leaves with the gateway router's address on the join switch as its source, so that VPCs may
// have the same addresses.
func Transit(in TransitInputs) []desired.Row {
	names := namesOfTransit(in.Vpc)
	owner := TransitOwner(in.Vpc)
	router := desired.Ref{Owner: owner, Key: keyTransitRouter}
	network := desired.Ref{Owner: owner, Key: keyTransitSwitch}
	options := routerOptions()
	options["chassis"] = in.Node
	rows := []desired.Row{
		{Key: router.Key, Model: &nb.LogicalRouter{Name: names.router, Options: options}, References: []desired.Reference{protectedBy(in.Vpc)}},
		{Key: network.Key, Model: &nb.LogicalSwitch{Name: names.network}, References: []desired.Reference{protectedBy(in.Vpc)}},
		routerPort("inner", RouterRef(in.Vpc), names.inner, linkAddresses(in, linkInner), gatewayMAC(linkInner[0]), nil),
		switchPort("inner-switch", network, names.innerOnSwitch, names.inner),
		routerPort("outer", router, names.outer, linkAddresses(in, linkOuter), gatewayMAC(linkOuter[0]), map[string]string{"route_table": transitTable}),
		switchPort("outer-switch", network, names.outerOnSwitch, names.outer),
		routerPort(keyTransitJoin, router, names.join, singly(in.Addresses), in.MAC, nil),
		switchPort("join-switch", SwitchRef(kubeovnv1.JoinSubnet), names.onJoin, names.join),
	}
	rows = append(rows, gatewayRouterRows(in, router, names)...)
	return append(rows, transitRoutes(in, names)...)
}

// gatewayRouterRows returns the NAT rules, routes and policies of the gateway router.
func gatewayRouterRows(in TransitInputs, router desired.Ref, names transitNames) []desired.Row {
	nat := desired.RouterNAT(router)
	var rows []desired.Row
	for _, address := range in.Addresses {
		family := ipfamily.Of(address).String()
		rows = append(rows,
			desired.Row{Key: "snat/" + family, Parent: &nat, Model: &nb.NAT{
				Type: nb.NATTypeSNAT, ExternalIP: address.String(), LogicalIP: ipfamily.Anywhere(address).String(),
			}},
			transitRoute("back/"+family, router, StaticRoute{Prefix: ipfamily.Anywhere(address), NextHop: like(linkInner, address)}, names.outer),
		)
		if hop := like(in.NextHops, address); hop.IsValid() {
			rows = append(rows, transitRoute("out/"+family, router, StaticRoute{Prefix: ipfamily.Anywhere(address), NextHop: hop, Table: transitTable}, names.join))
		}
	}
	return append(rows, gatewayRouterPolicies(in, router, names)...)
}

// gatewayRouterPolicies returns the policies that filter traffic at the gateway router. They are not on the VPC's router, where a
// user's policies could override them.
func gatewayRouterPolicies(in TransitInputs, router desired.Ref, names transitNames) []desired.Row {
	policies := desired.RouterPolicies(router)
	row := func(key string, priority int, action nb.LogicalRouterPolicyAction, match ...string) desired.Row {
		return desired.Row{Key: "policy/" + key, Parent: &policies, Model: &nb.LogicalRouterPolicy{
			Priority: priority, Match: strings.Join(match, " && "), Action: action,
		}}
	}
	fromVpc := `inport == "` + names.outer + `"`
	rows := []desired.Row{row("rest", priorityRest, nb.LogicalRouterPolicyActionDrop, fromVpc)}
	for _, address := range in.Addresses {
		family := ipfamily.Of(address).String()
		// Without this policy the router's own echo reply would be routed to the VPC, to any pod there with the requester's
		// address.
		rows = append(rows, row("forged/"+family, priorityForged, nb.LogicalRouterPolicyActionDrop,
			`inport == "`+names.join+`"`, matchIP("src", address, address.String())))
		for _, passing := range []struct {
			key, side string
			prefixes  []netip.Prefix
		}{{"services/", "dst", in.Services}, {"outgoing/", "src", in.Outgoing}} {
			if set := prefixSet(passing.prefixes, address); set != "" {
				rows = append(rows, row(passing.key+family, priorityPassing, nb.LogicalRouterPolicyActionAllow,
					fromVpc, matchIP(passing.side, address, set)))
			}
		}
	}
	return rows
}

// transitRoutes lead from the VPC's router to the gateway router: for Services and, if a subnet has natOutgoing, for all
// destinations.
func transitRoutes(in TransitInputs, names transitNames) []desired.Row {
	var rows []desired.Row
	add := func(key string, route StaticRoute) {
		for _, table := range append([]string{""}, in.RouteTables...) {
			route.Table = table
			if slices.ContainsFunc(in.Routes, route.competes) {
				continue
			}
			key := key
			if table != "" {
				key += "/" + table
			}
			rows = append(rows, transitRoute(key, RouterRef(in.Vpc), route, names.inner))
		}
	}
	for _, address := range in.Addresses {
		hop := like(linkOuter, address)
		for _, prefix := range in.Services {
			if ipfamily.Of(prefix.Addr()) == ipfamily.Of(hop) {
				add("service-route/"+prefix.String(), StaticRoute{Prefix: prefix, NextHop: hop})
			}
		}
		if prefixSet(in.Outgoing, address) != "" && !slices.Contains(in.External, ipfamily.Of(hop)) {
			add("default-route/"+ipfamily.Of(hop).String(), StaticRoute{Prefix: ipfamily.Anywhere(hop), NextHop: hop})
		}
	}
	return rows
}

// LeadsToGatewayRouter reports whether a route of Transit is a default route of a family from the VPC's router.
func LeadsToGatewayRouter(route *nb.LogicalRouterStaticRoute, family ipfamily.Family) bool {
	return slices.ContainsFunc(linkOuter, func(hop netip.Addr) bool {
		return ipfamily.Of(hop) == family && route.Nexthop == hop.String() && route.IPPrefix == ipfamily.Anywhere(hop).String()
	})
}

// transitRoute sets the route's output port, because its next hop is in no network of the router.
func transitRoute(key string, router desired.Ref, route StaticRoute, port string) desired.Row {
	routes := desired.RouterRoutes(router)
	model := route.model()
	model.OutputPort = &port
	return desired.Row{Key: key, Model: model, Parent: &routes}
}

func routerPort(key string, router desired.Ref, name string, networks []string, mac net.HardwareAddr, options map[string]string) desired.Row {
	ports := desired.RouterPorts(router)
	return desired.Row{
		Key: key, Parent: &ports,
		Model: &nb.LogicalRouterPort{Name: name, MAC: mac.String(), Networks: networks, Options: options},
	}
}

func switchPort(key string, network desired.Ref, name, peer string) desired.Row {
	ports := desired.SwitchPorts(network)
	return desired.Row{
		Key: key, Parent: &ports,
		Model: &nb.LogicalSwitchPort{
			Name: name, Type: "router", Addresses: []string{"router"}, Options: map[string]string{"router-port": peer},
		},
	}
}

// linkAddresses returns the addresses of one side of the link, in the families of the gateway router.
func linkAddresses(in TransitInputs, side []netip.Addr) []string {
	var addresses []netip.Addr
	for _, a := range in.Addresses {
		addresses = append(addresses, like(side, a))
	}
	return singly(addresses)
}

// singly returns networks of one address each. With the prefix length of the join subnet northd would add a flow per node to
// every gateway router.
func singly(addresses []netip.Addr) []string {
	networks := make([]string, 0, len(addresses))
	for _, a := range addresses {
		networks = append(networks, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return networks
}

// like returns the address with the same family as other, or the zero Addr.
func like(addresses []netip.Addr, other netip.Addr) netip.Addr {
	for _, a := range addresses {
		if ipfamily.Of(a) == ipfamily.Of(other) {
			return a
		}
	}
	return netip.Addr{}
}

// prefixSet returns the prefixes of an address's family in the form of a match; "" if there are none.
func prefixSet(prefixes []netip.Prefix, address netip.Addr) string {
	var list []string
	for _, p := range prefixes {
		if ipfamily.Of(p.Addr()) == ipfamily.Of(address) {
			list = append(list, p.Masked().String())
		}
	}
	switch len(list) {
	case 0:
		return ""
	case 1:
		return list[0]
	}
	return "{" + strings.Join(list, ", ") + "}"
}

// TransitAllocation is the allocation of a VPC's gateway router on the join switch.
type TransitAllocation struct {
	Vpc       string
	Addresses []netip.Addr
	MAC       net.HardwareAddr
}

// ReadTransitAllocation reads the allocation of a port that Transit returned. It returns false for other ports, and if another client
// changed the port and it cannot be parsed.
func ReadTransitAllocation(owner desired.Owner, port *nb.LogicalRouterPort) (TransitAllocation, bool) {
	allocation := TransitAllocation{Vpc: owner.Name}
	if port.Name != namesOfTransit(owner.Name).join {
		return allocation, false
	}
	mac, err := net.ParseMAC(port.MAC)
	if err != nil {
		return allocation, false
	}
	allocation.MAC = mac
	for _, network := range port.Networks {
		p, err := netip.ParsePrefix(network)
		if err != nil {
			return allocation, false
		}
		allocation.Addresses = append(allocation.Addresses, p.Addr())
	}
	return allocation, len(allocation.Addresses) > 0
}
