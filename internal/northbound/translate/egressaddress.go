// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// KindEgressAddress is the kind of the owners of routers that translate the packets of EgressAddresses, which have their names.
const KindEgressAddress = "EgressAddress"

// EgressAddressOwner owns the router of an EgressAddress, and the policies that lead to it.
func EgressAddressOwner(name string) desired.Owner {
	return desired.Owner{Kind: KindEgressAddress, Name: name}
}

// EgressPort is the name of the join switch's port to the router of an EgressAddress. The underscore is in no name of a Kubernetes object.
func EgressPort(name string) string { return kubeovnv1.JoinSubnet + "-" + name + "_egress" }

// EgressAddressInputs are the inputs of EgressAddress.
type EgressAddressInputs struct {
	Name string
	// Sets are the names of the sets of pods (PodSetOwner). The rows of the pods' ports add their addresses.
	Sets []string
	// Addresses are the source addresses, at most one per family. Packets of a family without one are not affected.
	Addresses []netip.Addr
	// Node is the node whose chassis translates; empty if there is none: the packets are dropped.
	Node string
	// NextHops are the node's addresses on the join switch, Joined the addresses of this router there, and Gateways the addresses of the VPC's router. All have one address per family.
	NextHops, Joined, Gateways []netip.Addr
	// Zone is the connection tracking zone of the router; 0 if ovn-controller chooses one.
	Zone int
}

// EgressAddress returns the policies that lead packets of a set of pods in the default VPC to the router of an EgressAddress, and this router. It translates their source,
// and sends them to its node, which forwards them without another translation. Answers come back the same way. Without a node, the policies drop the packets, so that none
// leaves with another source.
//
// The router has two ports on the join switch, so that the routes of the two directions never conflict. Its name has a hash of the addresses: other addresses are another
// router with other connections, because Open vSwitch would go on translating the established ones to the former address. See NewEgressZone for its zone.
func EgressAddress(in EgressAddressInputs) []desired.Row {
	var rows []desired.Row
	var served []netip.Addr
	for _, address := range in.Addresses {
		row, ok := in.policy(address)
		if rows = append(rows, row); ok {
			served = append(served, address)
		}
	}
	if len(served) == 0 {
		return rows
	}
	hash, name := in.hash(), in.Router()
	inner, outer := name+"-"+kubeovnv1.JoinSubnet, name+"-out"
	router := desired.Ref{Owner: EgressAddressOwner(in.Name), Key: "router/" + hash}
	options := routerOptions()
	options["chassis"] = in.Node
	if in.Zone != 0 {
		options[optionZone] = strconv.Itoa(in.Zone)
	}
	join := SwitchRef(kubeovnv1.JoinSubnet)
	rows = append(rows,
		desired.Row{Key: router.Key, Model: &nb.LogicalRouter{Name: name, Options: options}, References: []desired.Reference{protectedBy(kubeovnv1.DefaultVpc)}},
		routerPort("inner/"+hash, router, inner, singly(in.Joined), gatewayMAC(in.Joined[0]), map[string]string{"route_table": transitTable}),
		switchPort("inner-switch", join, EgressPort(in.Name), inner),
		routerPort("outer/"+hash, router, outer, singly(served), gatewayMAC(served[0]), nil),
		switchPort("outer-switch", join, EgressPort(in.Name)+"-out", outer),
	)
	nat, policies := desired.RouterNAT(router), desired.RouterPolicies(router)
	forged := func(key, port string, address netip.Addr) desired.Row {
		return desired.Row{Key: "forged/" + key + "/" + ipfamily.Of(address).String(), Parent: &policies, Model: &nb.LogicalRouterPolicy{
			Priority: priorityForged, Match: `inport == "` + port + `" && ` + matchIP("src", address, address.String()), Action: nb.LogicalRouterPolicyActionDrop,
		}}
	}
	for _, address := range served {
		family, anywhere := ipfamily.Of(address).String(), ipfamily.Anywhere(address)
		joined := like(in.Joined, address)
		rows = append(rows,
			desired.Row{Key: "snat/" + hash + "/" + family, Parent: &nat, Model: &nb.NAT{Type: nb.NATTypeSNAT, ExternalIP: address.String(), LogicalIP: anywhere.String()}},
			transitRoute("back/"+hash+"/"+family, router, StaticRoute{Prefix: anywhere, NextHop: like(in.Gateways, address)}, inner),
			transitRoute("out/"+hash+"/"+family, router, StaticRoute{Prefix: anywhere, NextHop: like(in.NextHops, address), Table: transitTable}, outer),
			// The router's own answers would be routed to the other side.
			forged("inner", inner, joined), forged("outer", outer, address),
		)
		if ipfamily.Of(address) == ipfamily.IPv6 {
			rows = append(rows, in.neighbour(joined))
		}
	}
	return rows
}

// policy leads the packets of the pods in one family to the router, or drops them. served is true if there is a way.
func (in EgressAddressInputs) policy(address netip.Addr) (row desired.Row, served bool) {
	policies := desired.RouterPolicies(RouterRef(kubeovnv1.DefaultVpc))
	family := ipfamily.Of(address)
	policy := &nb.LogicalRouterPolicy{
		Priority: priorityFixed, Action: nb.LogicalRouterPolicyActionDrop,
		Match: matchIP("src", address, in.pods(family)),
	}
	joined := like(in.Joined, address)
	if in.Node != "" && joined.IsValid() && like(in.NextHops, address).IsValid() && like(in.Gateways, address).IsValid() {
		policy.Action, policy.Nexthops, served = nb.LogicalRouterPolicyActionReroute, []string{joined.String()}, true
	}
	return desired.Row{Key: "policy/" + family.String(), Model: policy, Parent: &policies}, served
}

// pods returns the address sets of the pods in a family, in the form of a match.
func (in EgressAddressInputs) pods(family ipfamily.Family) string {
	var names []string
	for _, set := range in.Sets {
		names = append(names, "$"+setName(PeersRef(PodSetPart{Name: set}, family)))
	}
	return oneOf(names)
}

// neighbour returns a route to the router by itself, for neighbour solicitations as in ExternalInputs.neighbours.
func (in EgressAddressInputs) neighbour(joined netip.Addr) desired.Row {
	routes := desired.RouterRoutes(RouterRef(kubeovnv1.DefaultVpc))
	route := StaticRoute{Prefix: netip.PrefixFrom(joined, joined.BitLen()), NextHop: joined}
	return desired.Row{Key: "neighbour", Model: route.model(), Parent: &routes}
}

// Router is the name of the router.
func (in EgressAddressInputs) Router() string { return in.Name + "_egress-" + in.hash() }

func (in EgressAddressInputs) hash() string {
	var texts []string
	for _, address := range in.Addresses {
		texts = append(texts, address.String())
	}
	slices.Sort(texts)
	sum := sha256.Sum256([]byte(strings.Join(texts, ",")))
	return hex.EncodeToString(sum[:4])
}

// optionZone is the option of a Logical_Router with the zone in which it translates sources (ovn-nb(5)).
const optionZone = "snat-ct-zone"

// Zones of the routers of EgressAddresses. ovn-controller gives others the lowest free ones.
const (
	firstEgressZone = 1 << 15
	egressZones     = 1<<15 - 1
)

// NewEgressZone returns the zone of a new router, by its name: one that is not used. ovn-controller would give it the zone that the router of the former addresses leaves, and
// empty that zone before it installs the flows, so that packets in between would be tracked there with the former address.
func NewEgressZone(router string, used func(zone int) bool) int {
	sum := sha256.Sum256([]byte(router))
	start := int(binary.BigEndian.Uint16(sum[:]))
	for i := range egressZones {
		if zone := firstEgressZone + (start+i)%egressZones; !used(zone) {
			return zone
		}
	}
	return 0 // as many routers as zones: the subnet join has fewer ports
}

// ReadEgressZone returns the zone of a router that EgressAddress returned; 0 if it has none, as the routers of earlier versions.
func ReadEgressZone(router *nb.LogicalRouter) int {
	zone, err := strconv.Atoi(router.Options[optionZone])
	if err != nil || zone < firstEgressZone || zone >= firstEgressZone+egressZones {
		return 0
	}
	return zone
}

// EgressAllocation is the allocation of the router of an EgressAddress on the join switch. Its MAC address follows from the first address.
type EgressAllocation struct {
	Name      string
	Addresses []netip.Addr
}

// ReadEgressAllocation reads the allocation of a port that EgressAddress returned. It returns false for other ports, and if another client changed the port and it cannot
// be parsed.
func ReadEgressAllocation(owner desired.Owner, port *nb.LogicalRouterPort) (EgressAllocation, bool) {
	allocation := EgressAllocation{Name: owner.Name}
	if port.Options["route_table"] != transitTable {
		return allocation, false
	}
	for _, network := range port.Networks {
		p, err := netip.ParsePrefix(network)
		if err != nil {
			return allocation, false
		}
		allocation.Addresses = append(allocation.Addresses, p.Addr())
	}
	return allocation, len(allocation.Addresses) > 0
}

// ReadEgressPolicy returns the names, in the database, of the address sets in a policy that EgressAddress returned, and an address of its family. It returns false for other
// policies.
func ReadEgressPolicy(policy *nb.LogicalRouterPolicy) (sets []string, family netip.Addr, ok bool) {
	for _, family := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		text, is := strings.CutPrefix(policy.Match, matchIP("src", family, ""))
		if !is || policy.Priority != priorityFixed {
			continue
		}
		for _, name := range strings.Split(strings.Trim(text, "{}"), ", ") {
			sets = append(sets, strings.TrimPrefix(name, "$"))
		}
		return sets, family, true
	}
	return nil, netip.Addr{}, false
}
