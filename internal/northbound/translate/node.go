// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// NodePort is the name of a node's logical switch port, and of its IP object.
func NodePort(node string) string { return kubeovnv1.NodePortName(node) }

// NodeInputs are the inputs of Node.
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

// Node returns
//
//   - a node's port on the join switch;
//   - the address sets, for both families, of its pods behind a distributed gateway;
//   - the policies that reroute traffic to the node, and the egress traffic of these pods and of shared addresses on the node, to the port.
//
// The rows of pods add their own addresses to the sets, which ovn-northd handles incrementally. With port groups it would do a
// full recompute for the first and the last port of a switch in a group (OVN 25.03).
func Node(in NodeInputs) []desired.Row {
	ports := desired.SwitchPorts(SwitchRef(in.Switch))
	rows := []desired.Row{{
		Key: "port",
		Model: &nb.LogicalSwitchPort{
			Name:        NodePort(in.Name),
			Addresses:   []string{portAddress(in.MAC, in.Addresses)},
			Options:     map[string]string{optionChassis: in.Name},
			ExternalIDs: map[string]string{idSwitch: in.Switch},
		},
		Parent: &ports,
	}}
	for _, ip := range in.InternalIPs {
		rows[0].Elements = append(rows[0].Elements, desired.Element{Of: desired.SetAddresses(NodesRef(in.Vpc, ipfamily.Of(ip))), Value: ip.String()})
	}
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		set := NodeEgressRef(in.Vpc, in.Name, family)
		rows = append(rows, desired.Row{Key: set.Key, Model: &nb.AddressSet{Name: setName(set)}})
	}
	for _, hop := range in.Addresses {
		rows = append(rows, egressPolicy(in, hop), sharedPolicy(in, hop))
		for _, ip := range in.InternalIPs {
			if ipfamily.Of(ip) == ipfamily.Of(hop) {
				rows = append(rows, nodePolicy(in, ip, hop))
			}
		}
	}
	return rows
}

// nodePolicy reroutes traffic to one of the node's own addresses to the node's port, hop.
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

// egressPolicy reroutes the egress traffic of the node's pods behind a distributed gateway to the node's port, hop.
func egressPolicy(in NodeInputs, hop netip.Addr) desired.Row {
	set := setName(NodeEgressRef(in.Vpc, in.Name, ipfamily.Of(hop)))
	return leavePolicy("egress-policy/", in, hop, matchIP("src", hop, "$"+set))
}

// sharedPolicy reroutes the egress traffic from addresses that pods share to the node's port, hop. A shared address moves between nodes without
// an event of Kubernetes. The chassis of the sending pod processes its packets, so the policy applies only at the chassis of the node's port.
func sharedPolicy(in NodeInputs, hop netip.Addr) desired.Row {
	set := setName(SharedRef(in.Vpc, ipfamily.Of(hop)))
	return leavePolicy("shared-policy/", in, hop, matchIP("src", hop, "$"+set)+` && is_chassis_resident("`+NodePort(in.Name)+`")`)
}

func leavePolicy(key string, in NodeInputs, hop netip.Addr, match string) desired.Row {
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	return desired.Row{
		Key: key + ipfamily.Of(hop).String(),
		Model: &nb.LogicalRouterPolicy{
			Priority: priorityEgress,
			Match:    match,
			Action:   nb.LogicalRouterPolicyActionReroute,
			Nexthops: []string{hop.String()},
		},
		Parent: &policies,
	}
}
