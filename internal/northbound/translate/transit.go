// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// The link between a VPC's router and its gateway router: one address of each side and family, the same in every VPC. They are prefixes
// of single addresses, so that no others are lost to the VPC, of link-local addresses and of a unique local prefix (RFC 3927, RFC 4193)
// drawn at random.
var (
	linkInner = []netip.Addr{netip.MustParseAddr("169.254.254.1"), netip.MustParseAddr("fd8c:6b69:6c6e::1")}
	linkOuter = []netip.Addr{netip.MustParseAddr("169.254.254.2"), netip.MustParseAddr("fd8c:6b69:6c6e::2")}
)

// TransitLink are the addresses of the link between a VPC's router and its gateway router. No subnet of the VPC can have them.
func TransitLink() []netip.Addr { return slices.Concat(linkInner, linkOuter) }

// Priorities of the policies on a gateway router, where no user has any.
const (
	priorityForged  = 3 // what comes in with the router's own address is dropped
	priorityPassing = 2 // what goes to Services, and what comes from subnets with natOutgoing, passes
	priorityRest    = 1 // the rest of what comes from the VPC is dropped
)

// transitTable is the route table in which the gateway router looks up what comes from the VPC. What comes back is looked up in the main one, so
// that the two never meet, whatever addresses the VPC has.
const transitTable = "out"

// Keys of Transit's rows.
const (
	keyTransitRouter = "router"
	keyTransitSwitch = "switch"
	keyTransitJoin   = "join"
)

// TransitInputs are what leads out of a VPC.
type TransitInputs struct {
	Vpc string
	// Node whose chassis has the gateway router.
	Node string
	// NextHops are the node's addresses on the join switch, Addresses and MAC those of the gateway router there: one address per family.
	NextHops  []netip.Addr
	Addresses []netip.Addr
	MAC       net.HardwareAddr
	// Services are the CIDRs of Services.
	Services []netip.Prefix
	// Outgoing are the CIDRs of the VPC's subnets with natOutgoing.
	Outgoing []netip.Prefix
	// RouteTables are those of the VPC's router beside the main one.
	RouteTables []string
	// Routes are the user's, which take the place of those that compete with them.
	Routes []StaticRoute
}

// transitNames are the names of what leads out of a VPC. No name of Kubernetes holds an underscore, and what follows one in names of other
// ports is hexadecimal.
type transitNames struct {
	router, network string
	// The ports of the VPC's router, of the gateway router inward and outward, and those of the switches at their other ends.
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

// TransitPort is the name of the join switch's port to the gateway router of a VPC.
func TransitPort(vpc string) string { return kubeovnv1.JoinSubnet + "-" + vpc + "_gateway" }

// Transit returns the gateway router of a VPC on a node, the switch between it and the VPC's router, and how both route. Everything leaves
// with the gateway router's address on the join switch, so that VPCs with the same addresses never meet.
func Transit(in TransitInputs) []desired.Row {
	names := namesOfTransit(in.Vpc)
	owner := TransitOwner(in.Vpc)
	router := desired.Ref{Owner: owner, Key: keyTransitRouter}
	network := desired.Ref{Owner: owner, Key: keyTransitSwitch}
	options := routerOptions()
	options["chassis"] = in.Node
	rows := []desired.Row{
		{Key: router.Key, Model: &nb.LogicalRouter{Name: names.router, Options: options}},
		{Key: network.Key, Model: &nb.LogicalSwitch{Name: names.network}},
		routerPort("inner", RouterRef(in.Vpc), names.inner, linkAddresses(in, linkInner), gatewayMAC(linkInner[0]), nil),
		switchPort("inner-switch", network, names.innerOnSwitch, names.inner),
		routerPort("outer", router, names.outer, linkAddresses(in, linkOuter), gatewayMAC(linkOuter[0]), map[string]string{"route_table": transitTable}),
		switchPort("outer-switch", network, names.outerOnSwitch, names.outer),
		routerPort(keyTransitJoin, router, names.join, singly(in.Addresses), in.MAC, nil),
		switchPort("join-switch", SwitchRef(kubeovnv1.JoinSubnet), names.onJoin, names.join),
	}
	rows = append(rows, transitGateway(in, router, names)...)
	return append(rows, transitRoutes(in, names)...)
}

// transitGateway is how the gateway router translates and routes.
func transitGateway(in TransitInputs, router desired.Ref, names transitNames) []desired.Row {
	nat := desired.RouterNAT(router)
	var rows []desired.Row
	for _, address := range in.Addresses {
		family := familyKey(address)
		rows = append(rows,
			desired.Row{Key: "snat/" + family, Parent: &nat, Model: &nb.NAT{
				Type: nb.NATTypeSNAT, ExternalIP: address.String(), LogicalIP: anywhere(address).String(),
			}},
			transitRoute("back/"+family, router, StaticRoute{Prefix: anywhere(address), NextHop: like(linkInner, address)}, names.outer),
		)
		if hop := like(in.NextHops, address); hop.IsValid() {
			rows = append(rows, transitRoute("out/"+family, router, StaticRoute{Prefix: anywhere(address), NextHop: hop, Table: transitTable}, names.join))
		}
	}
	return append(rows, transitPolicies(in, router, names)...)
}

// transitPolicies say what passes the gateway router. They are not the VPC's router's, where policies of the user could come before them.
func transitPolicies(in TransitInputs, router desired.Ref, names transitNames) []desired.Row {
	policies := desired.RouterPolicies(router)
	row := func(key string, priority int, action nb.LogicalRouterPolicyAction, match ...string) desired.Row {
		return desired.Row{Key: "policy/" + key, Parent: &policies, Model: &nb.LogicalRouterPolicy{
			Priority: priority, Match: strings.Join(match, " && "), Action: action,
		}}
	}
	fromVpc := `inport == "` + names.outer + `"`
	rows := []desired.Row{row("rest", priorityRest, nb.LogicalRouterPolicyActionDrop, fromVpc)}
	for _, address := range in.Addresses {
		family := familyKey(address)
		// An echo reply of the router itself would go to the VPC, to whatever pod there has the address of the one that asked.
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

// transitRoutes lead from the VPC's router to the gateway router: to Services and, when a subnet has natOutgoing, everywhere.
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
		if prefixSet(in.Outgoing, address) != "" {
			add("default-route/"+familyKey(hop), StaticRoute{Prefix: anywhere(hop), NextHop: hop})
		}
	}
	return rows
}

// transitRoute names the port, for its next hop is in no network of the router's.
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

// linkAddresses are those of one side of the link in the families that the gateway router has.
func linkAddresses(in TransitInputs, side []netip.Addr) []string {
	var addresses []netip.Addr
	for _, a := range in.Addresses {
		addresses = append(addresses, like(side, a))
	}
	return singly(addresses)
}

// singly are networks of one address each. Of the length that the join subnet has, northd would write a flow per node into every gateway
// router.
func singly(addresses []netip.Addr) []string {
	networks := make([]string, 0, len(addresses))
	for _, a := range addresses {
		networks = append(networks, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return networks
}

// like is the address of another one's family.
func like(addresses []netip.Addr, other netip.Addr) netip.Addr {
	for _, a := range addresses {
		if ipfamily.Of(a) == ipfamily.Of(other) {
			return a
		}
	}
	return netip.Addr{}
}

// prefixSet is those prefixes of an address's family as a match has them; empty when there is none.
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

// TransitLease is what the gateway router of a VPC has on the join switch.
type TransitLease struct {
	Vpc       string
	Addresses []netip.Addr
	MAC       net.HardwareAddr
}

// ReadTransitLease reads a port that Transit made. It is false for others, and when someone else has written the port so that it cannot be read.
func ReadTransitLease(owner desired.Owner, port *nb.LogicalRouterPort) (TransitLease, bool) {
	lease := TransitLease{Vpc: owner.Name}
	if port.Name != namesOfTransit(owner.Name).join {
		return lease, false
	}
	mac, err := net.ParseMAC(port.MAC)
	if err != nil {
		return lease, false
	}
	lease.MAC = mac
	for _, network := range port.Networks {
		p, err := netip.ParsePrefix(network)
		if err != nil {
			return lease, false
		}
		lease.Addresses = append(lease.Addresses, p.Addr())
	}
	return lease, len(lease.Addresses) > 0
}
