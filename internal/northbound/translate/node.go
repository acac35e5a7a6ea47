// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"

	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// NodePort is the name of a node's logical switch port, and of its IP object.
func NodePort(node string) string { return "node-" + node }

// NodeInputs are what a node's own port and its part in the default VPC follow from.
type NodeInputs struct {
	Name string
	// Vpc is the default VPC.
	Vpc string
	// Switch is the subnet that connects nodes to the VPC: `join`.
	Switch string
	MAC    net.HardwareAddr
	// Addresses of the node's port on the switch, one per family.
	Addresses []netip.Addr
	// InternalIPs are the node's own addresses.
	InternalIPs []netip.Addr
}

// Node returns a node's port on the join switch; the port groups of its pods; and the policies that send through this port what
// goes to the node itself, and what the node's pods behind a distributed gateway send out of the VPC.
//
// A pod joins the groups by its own rows. On OVN 25.03 the first and the last port that a switch has in a group cost ovn-northd
// a full computation; every other change is incremental.
func Node(in NodeInputs) []desired.Row {
	ports := desired.SwitchPorts(SwitchRef(in.Switch))
	rows := []desired.Row{
		{
			Key: "port",
			Model: &nb.LogicalSwitchPort{
				Name:        NodePort(in.Name),
				Addresses:   []string{portAddress(in.MAC, in.Addresses)},
				Options:     map[string]string{optionChassis: in.Name},
				ExternalIDs: map[string]string{idSwitch: in.Switch},
			},
			Parent: &ports,
		},
		groupRow(NodePodsRef(in.Vpc, in.Name)),
		groupRow(NodeEgressRef(in.Vpc, in.Name)),
	}
	for _, hop := range in.Addresses {
		rows = append(rows, egressPolicy(in, hop))
		for _, ip := range in.InternalIPs {
			if ipfamily.Of(ip) == ipfamily.Of(hop) {
				rows = append(rows, nodePolicy(in, ip, hop))
			}
		}
	}
	return rows
}

func groupRow(r desired.Ref) desired.Row {
	return desired.Row{Key: r.Key, Model: &nb.PortGroup{Name: groupName(r)}}
}

// nodePolicy sends what goes to one of the node's own addresses through the node's port, hop.
func nodePolicy(in NodeInputs, ip, hop netip.Addr) desired.Row {
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	return desired.Row{
		Key: "node-policy/" + ip.String(),
		Model: &nb.LogicalRouterPolicy{
			Priority: priorityNode,
			Match:    matchIP("dst", ip, ip.String()),
			Action:   nb.LogicalRouterPolicyActionReroute,
			Nexthops: []string{hop.String()},
		},
		Parent: &policies,
	}
}

// egressPolicy sends what leaves the VPC from the node's egress group through the node's port, hop. northd keeps the addresses
// of a port group in two address sets, one per family (ovn-nb(5), Port_Group).
func egressPolicy(in NodeInputs, hop netip.Addr) desired.Row {
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	set := "$" + groupName(NodeEgressRef(in.Vpc, in.Name)) + "_" + matchFamily(hop)
	return desired.Row{
		Key: "egress-policy/" + familyKey(hop),
		Model: &nb.LogicalRouterPolicy{
			Priority: priorityEgress,
			Match:    matchIP("src", hop, set),
			Action:   nb.LogicalRouterPolicyActionReroute,
			Nexthops: []string{hop.String()},
		},
		Parent: &policies,
	}
}
