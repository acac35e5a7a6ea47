// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// KindSecurityGroup owns the ACLs of a security group.
const KindSecurityGroup = "SecurityGroup"

// protocolVRRP is the IP protocol of VRRP, by which routers and keepalived elect the owner of an address (RFC 9568).
const protocolVRRP = 112

// SecurityGroupOwner owns the ACLs of a security group.
func SecurityGroupOwner(name string) desired.Owner {
	return desired.Owner{Kind: KindSecurityGroup, Name: name}
}

// SecurityGroupName is the name of the port group of a security group's pods.
func SecurityGroupName(subjects string) string { return groupName(subjects) }

// SecurityGroupInputs are the inputs of SecurityGroup.
type SecurityGroupInputs struct {
	Name string
	// Subjects is the name of the set of pods in the group.
	Subjects string
	// Same is the name of the address sets of the group's own pods; empty unless they may reach each other.
	Same string
	// Tier is TierPolicy or TierBaseline.
	Tier  int
	Rules []SecurityGroupRule
	// LogDefault: packets that no group allows are logged.
	LogDefault bool
}

// SecurityGroupRule is one rule of one family. An invalid Remote or Local means any address.
type SecurityGroupRule struct {
	Key       string
	Direction Direction
	// Priority is the user's: 1 is evaluated first.
	Priority int
	Action   nb.ACLAction
	Family   ipfamily.Family
	Remote   netip.Prefix
	// RemoteSet is the name of a set of pods' addresses; if set, Remote is ignored.
	RemoteSet string
	Local     netip.Prefix
	// Protocol is "tcp", "udp", "icmp", or empty for all.
	Protocol string
	// Ports are destination ports, SourcePorts source ports; First == 0 means any.
	Ports       PortRange
	SourcePorts PortRange
	// Log: packets are logged, by the meter of ClusterLogs. Only rules that drop do.
	Log bool
}

// PortRange is a range of ports.
type PortRange struct{ First, Last int }

// SecurityGroup returns the ACLs of a security group on the port group of its pods. The ACLs of IsolationInputs.Grouped drop
// packets that match none of them.
func SecurityGroup(in SecurityGroupInputs) []desired.Row {
	parent := desired.GroupACLs(SubjectsRef(in.Subjects))
	group := groupName(in.Subjects)
	var rows []desired.Row
	add := func(key string, priority int, direction Direction, action nb.ACLAction, log bool, conditions ...string) {
		acl := aclOn(group, direction, conditions...)
		acl.Priority, acl.Tier, acl.Action, acl.Name = priority, in.Tier, action, new(cut("sg/"+in.Name+"/"+key))
		if log {
			logDrops(acl, ClusterLogs)
		}
		rows = append(rows, desired.Row{Key: "acl/" + key, Model: acl, Parent: &parent})
	}
	for _, r := range in.Rules {
		add(r.Key, prioritySecurityRule-r.Priority, r.Direction, r.Action, r.Log, r.conditions()...)
	}
	for _, direction := range []Direction{Ingress, Egress} {
		if in.LogDefault { // the ACLs of IsolationInputs.Grouped, which belong to no group, would drop the same packets
			add(string(direction)+"/default", prioritySecurityLog, direction, nb.ACLActionDrop, true, "ip")
		}
	}
	if in.Same == "" {
		return rows
	}
	for _, direction := range []Direction{Ingress, Egress} {
		for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			ip := familyName(family)
			set := "$" + setName(PeersRef(PodSetPart{Name: in.Same}, family))
			add(string(direction)+"/same/"+ip, prioritySecuritySame, direction, nb.ACLActionAllowRelated, false,
				ip+"."+remoteSide(direction)+" == "+set)
		}
	}
	return rows
}

// conditions returns the match of a rule, without the port.
func (r SecurityGroupRule) conditions() []string {
	ip, remote := familyName(r.Family), remoteSide(r.Direction)
	local := map[string]string{"src": "dst", "dst": "src"}[remote]
	conditions := []string{ip}
	between := func(ports PortRange, field string) {
		if ports.First > 0 {
			conditions = append(conditions, fmt.Sprintf("%d <= %s.%s <= %d", ports.First, r.Protocol, field, ports.Last))
		}
	}
	switch {
	case r.RemoteSet != "":
		conditions = append(conditions, ip+"."+remote+" == $"+setName(PeersRef(PodSetPart{Name: r.RemoteSet}, r.Family)))
	case r.Remote.Bits() > 0:
		conditions = append(conditions, ip+"."+remote+" == "+constant(r.Remote))
	}
	if r.Local.Bits() > 0 {
		conditions = append(conditions, ip+"."+local+" == "+constant(r.Local))
	}
	switch r.Protocol {
	case "":
	case "icmp":
		conditions = append(conditions, "icmp"+strings.TrimPrefix(ip, "ip"))
	default:
		conditions = append(conditions, r.Protocol)
		between(r.Ports, "dst")
		between(r.SourcePorts, "src")
	}
	return conditions
}

func constant(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.Masked().String()
}

// remoteSide is the side of a packet, "src" or "dst", with the address of the pod's peer.
func remoteSide(d Direction) string {
	if d == Ingress {
		return "src"
	}
	return "dst"
}

// aclOn returns an ACL on packets to, or from, the ports of a group for which all conditions are true. It ignores empty
// conditions. Egress ACLs are evaluated after load balancing, on the final destination.
func aclOn(group string, direction Direction, conditions ...string) *nb.ACL {
	acl, port := &nb.ACL{Direction: nb.ACLDirectionToLport}, "outport == @"+group
	if direction == Egress {
		acl.Direction, port = nb.ACLDirectionFromLport, "inport == @"+group
		acl.Options = map[string]string{"apply-after-lb": "true"}
	}
	acl.Match = port
	for _, c := range conditions {
		if c != "" {
			acl.Match += " && " + c
		}
	}
	return acl
}

// grouped returns the port groups of the pods to which security groups apply, one per tier, with the default ACLs. These drop
// IP packets that no security group allows, except VRRP and answers of DHCP servers. ARP is not IP, and OVN itself passes
// neighbour discovery.
func grouped() []desired.Row {
	var rows []desired.Row
	for _, tier := range []int{TierPolicy, TierBaseline} {
		ref := groupedRef(tier)
		group, acls := setName(ref), desired.GroupACLs(ref)
		ids := map[string]string{idSelector: fmt.Sprintf("security groups, tier %d", tier-TierPolicy)}
		rows = append(rows, desired.Row{Key: ref.Key, Model: &nb.PortGroup{Name: group, ExternalIDs: ids}})
		add := func(key string, d Direction, priority int, action nb.ACLAction, match string) {
			acl := aclOn(group, d, match)
			acl.Priority, acl.Tier, acl.Action, acl.Name = priority, tier, action, new("sg/"+string(d)+"/"+key)
			rows = append(rows, desired.Row{Key: fmt.Sprintf("acl/%s/%s/%s", ref.Key, d, key), Model: acl, Parent: &acls})
		}
		for _, d := range []Direction{Ingress, Egress} {
			add("vrrp", d, prioritySecurityBase, nb.ACLActionAllowRelated, fmt.Sprintf("ip.proto == %d", protocolVRRP))
			add("default", d, prioritySecurityDrop, nb.ACLActionDrop, "ip")
		}
		for _, ip := range []string{"ip4", "ip6"} {
			client, server := dhcpPorts(ip)
			add("dhcp/"+ip, Ingress, prioritySecurityBase, nb.ACLActionAllowRelated,
				fmt.Sprintf("%s && udp.src == %d && udp.dst == %d", ip, server, client))
		}
	}
	return rows
}

// dhcpPorts are the UDP ports of DHCP clients and servers of a family.
func dhcpPorts(ip string) (client, server int) {
	if ip == "ip4" {
		return 68, 67
	}
	return 546, 547
}
