// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"
	"strings"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// GatewayPort is the port of a VPC's router on the switch of an underlay subnet. One chassis at a time hosts it: each chassis would answer ARP
// and ND for a port without chassis.
type GatewayPort struct {
	// Addresses of the port, one per CIDR of the subnet, in the same order.
	Addresses []netip.Addr
	// Chassis that can host the port, at least one. The first one that works hosts it.
	Chassis []string
	// Into are the parts of an interconnected subnet's CIDRs to which the router routes traffic of the VPC.
	Into []netip.Prefix
	// Interconnects: the subnet's gateways are routers of the physical network, which route all traffic of the subnet but that to the overlay.
	Interconnects bool
	// OverlayOnly routes traffic to other interconnected underlay subnets by the physical router, too.
	OverlayOnly bool
	// NodesOf is the VPC to which nodes are connected; empty for the port of another VPC's router.
	NodesOf string
}

// GatewayPortMAC is the hardware address of a gateway port.
func GatewayPortMAC(addresses []netip.Addr) net.HardwareAddr { return gatewayMAC(addresses[0]) }

// InterconnectionRecord is the name of the IP object of the router's port in an interconnected underlay subnet. It is Kube-OVN's.
func InterconnectionRecord(vpc, subnet string) string {
	return interconnectionPrefix + vpc + "." + subnet
}

// InterconnectionHolder is the allocator's holder name of that port. No port has this name.
func InterconnectionHolder(subnet string) string { return "u2o-interconnection/" + subnet }

// IsOwnRecord reports whether an IP object may be one of a subnet itself: of its querier, or of the router's port in it.
func IsOwnRecord(name string) bool {
	return strings.HasPrefix(name, interconnectionPrefix) || strings.HasPrefix(name, QuerierRecord(""))
}

const interconnectionPrefix = "u2o-interconnection."

// gatewayPort returns a gateway port with its peer, its chassis, the policies of the subnet and the ACLs of the localnet port.
func gatewayPort(in SubnetInputs) []desired.Row {
	port := in.Localnet.Router
	in.RouteTable, in.IPv6RA = "", false // advertisements would make OVN's router the default router of other hosts of the physical network
	rows := routerPair(in, port.Addresses)
	name := rows[0].Model.(*nb.LogicalRouterPort).Name
	set := desired.PortChassis(RouterPortRef(in.Name))
	for i, chassis := range port.Chassis {
		rows = append(rows, desired.Row{Key: "chassis/" + chassis, Parent: &set, Model: &nb.GatewayChassis{
			Name: name + "_" + chassis, ChassisName: chassis, Priority: len(port.Chassis) - i,
		}})
	}
	rows = append(rows, untracked(in)...)
	if !port.Interconnects {
		return append(rows, localPolicies(in)...)
	}
	return append(rows, interconnection(in)...)
}

// untracked exempts the localnet port from conntrack: a chassis may see one direction only of a connection that another one routes. The ACLs
// have the lowest precedence, and conntrack in the zones of pods' ports still applies policies.
func untracked(in SubnetInputs) []desired.Row {
	acls := desired.SwitchACLs(SwitchRef(in.Name))
	port := localnetPort(in).Model.(*nb.LogicalSwitchPort).Name
	row := func(direction nb.ACLDirection, side string) desired.Row {
		return desired.Row{Key: "acl/localnet/" + direction, Parent: &acls, Model: &nb.ACL{
			Direction: direction, Tier: TierBaseline, Action: nb.ACLActionAllowStateless, Match: side + ` == "` + port + `"`,
		}}
	}
	return []desired.Row{row(nb.ACLDirectionFromLport, "inport"), row(nb.ACLDirectionToLport, "outport")}
}

// interconnection returns the policies that route traffic to the subnet, and from it: to overlay subnets by their own policies of a higher priority, and
// all other traffic by the physical router. Nodes answer by their physical network, therefore requests to them leave by it, too.
func interconnection(in SubnetInputs) []desired.Row {
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	var rows []desired.Row
	for i, cidr := range in.CIDRs {
		from := matchIP("src", cidr.Addr(), cidr.String())
		add := func(key string, policy nb.LogicalRouterPolicy) {
			rows = append(rows, desired.Row{Key: key + "/" + ipfamily.Of(cidr.Addr()).String(), Model: &policy, Parent: &policies})
		}
		physical := func(priority int, match string) nb.LogicalRouterPolicy {
			return nb.LogicalRouterPolicy{
				Priority: priority, Match: match, Action: nb.LogicalRouterPolicyActionReroute, Nexthops: []string{in.Gateways[i].String()},
			}
		}
		if nodes := in.Localnet.Router.NodesOf; nodes != "" {
			set := "$" + setName(NodesRef(nodes, ipfamily.Of(cidr.Addr())))
			add("to-nodes", physical(priorityLocal, from+" && "+matchIP("dst", cidr.Addr(), set)))
		}
		if into := prefixSet(in.Localnet.Router.Into, cidr.Addr()); into != "" {
			add("into", nb.LogicalRouterPolicy{Priority: priorityInto, Match: matchIP("dst", cidr.Addr(), into), Action: nb.LogicalRouterPolicyActionAllow})
		}
		add("within", nb.LogicalRouterPolicy{Priority: priorityWithin, Match: between(cidr, cidr), Action: nb.LogicalRouterPolicyActionAllow})
		if in.Localnet.Router.OverlayOnly {
			add("from", physical(priorityOverlay, from))
		} else {
			add("from", physical(priorityEgress, from))
		}
	}
	return rows
}
