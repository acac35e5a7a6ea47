// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// maxACLName is the longest name of an ACL (ovn-nb(5)).
const maxACLName = 63

// Direction of a rule's traffic, from the point of view of its subjects.
type Direction string

const (
	// Ingress is traffic to subjects.
	Ingress Direction = "ingress"
	// Egress is traffic from subjects.
	Egress Direction = "egress"
)

// PolicyInputs are the inputs of Policy, for all kinds of policies.
type PolicyInputs struct {
	Owner desired.Owner
	// Title is the policy's name in logs: `np/<name>.<namespace>`.
	Title string
	// Subjects is the name of the set of pods that the policy applies to.
	Subjects string
	Tier     int
	Rules    []PolicyRule
}

// PolicyRule is one rule for traffic between subjects and peers: the pods in Sets, the addresses in Networks, or any address if Any is set.
type PolicyRule struct {
	// Key is unique in the policy and constant during the life of the rule.
	Key       string
	Direction Direction
	Priority  int
	Action    nb.ACLAction
	Any       bool
	Sets      []PodSetPart
	Networks  []netip.Prefix
	// To restricts the rule to traffic to pods in any of these sets, which are the sets of a named port.
	To []PodSetPart
	// Ports are destination ports; none means any.
	Ports []PolicyPort
	// Log: packets are logged, by the meter of PolicyLogs.
	Log bool
}

// PodSetPart is a set of pods' addresses. If the set has a named port, Number selects the pods on which that port has this
// number; otherwise it is 0.
type PodSetPart struct {
	Name   string
	Number int32
}

// PolicyPort is a range of ports of a protocol, "tcp", "udp" or "sctp"; First == 0 means all ports.
type PolicyPort struct {
	Protocol    string
	First, Last int32
}

// Policy returns the ACLs of a policy on the port group of its subjects. Allowed connections are tracked, so that replies pass.
// Egress rules are evaluated after load balancing, on the final destination. OVN itself passes neighbour discovery.
func Policy(in PolicyInputs) []desired.Row {
	p := policy{in: in, parent: desired.GroupACLs(SubjectsRef(in.Subjects))}
	for _, rule := range in.Rules {
		p.rule(rule)
	}
	return p.rows
}

type policy struct {
	in     PolicyInputs
	parent desired.Set
	rows   []desired.Row
}

// rule adds one ACL per family, or a single one if both would be the same. TestFlowsOfPolicyRules compares the flows of ACLs
// with PolicyRule.Flows.
func (p *policy) rule(r PolicyRule) {
	ports := portMatch(r.Ports)
	if r.Any && len(r.To) == 0 {
		p.acl(r, "", "ip", ports)
		return
	}
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		key, ip := "/"+familyName(family), familyName(family)
		to := ""
		if len(r.To) > 0 {
			to = ip + ".dst == " + oneOf(setNames(r.To, family))
		}
		peers := setNames(r.Sets, family)
		whole := r.Any
		for _, network := range r.Networks {
			switch {
			case ipfamily.Of(network.Addr()) != family:
			case network.Bits() == 0:
				whole = true
			default:
				peers = append(peers, network.Masked().String())
			}
		}
		switch {
		case whole:
			p.acl(r, key, ip, to, ports)
		case len(peers) > 0:
			p.acl(r, key, ip, to, ports, ip+"."+remoteSide(r.Direction)+" == "+oneOf(peers))
		}
	}
}

// acl adds an ACL that matches if all conditions are true. It ignores empty conditions.
func (p *policy) acl(r PolicyRule, key string, conditions ...string) {
	acl := aclOn(groupName(p.in.Subjects), r.Direction, conditions...)
	acl.Priority, acl.Tier, acl.Action, acl.Name = r.Priority, p.in.Tier, r.Action, new(cut(p.in.Title+"/"+r.Key+key))
	if r.Log {
		logDrops(acl, LogsOf(p.in.Owner))
		if r.Action != nb.ACLActionDrop {
			acl.Severity = new(nb.ACLSeverityInfo)
		}
	}
	p.rows = append(p.rows, desired.Row{Key: "acl/" + r.Key + key, Model: acl, Parent: &p.parent})
}

// portMatch returns a match on destination ports, "" for any. If a match has several protocols, each list of ports is preceded
// by its protocol: otherwise ovn-controller multiplies the ports by the networks and sets of the match instead of adding them
// (expr_normalize_and in OVN's lib/expr.c, counted in TestFlowsOfPolicyRules).
func portMatch(ports []PolicyPort) string {
	byProtocol := map[string][]string{}
	for _, protocol := range []string{nb.LoadBalancerProtocolTCP, nb.LoadBalancerProtocolUDP, nb.LoadBalancerProtocolSCTP} {
		if matches := portsOf(protocol, ports); len(matches) > 0 {
			byProtocol[protocol] = matches
		}
	}
	var all []string
	for protocol, matches := range byProtocol {
		match := anyOf(matches)
		if len(byProtocol) > 1 && strings.ContainsAny(match, "{|") {
			match = "(" + protocol + " && " + match + ")"
		}
		all = append(all, match)
	}
	return anyOf(all)
}

// portsOf returns matches on the ports of one protocol.
func portsOf(protocol string, ports []PolicyPort) []string {
	var single, matches []string
	for _, p := range ports {
		switch {
		case p.Protocol != protocol:
		case p.First == 0:
			return []string{protocol}
		case p.Last <= p.First:
			single = append(single, strconv.Itoa(int(p.First)))
		default:
			matches = append(matches, fmt.Sprintf("%d <= %s.dst <= %d", p.First, protocol, p.Last))
		}
	}
	if len(single) > 0 {
		matches = append(matches, protocol+".dst == "+oneOf(single))
	}
	return matches
}

// anyOf returns the disjunction of matches, sorted; "" if there are none.
func anyOf(matches []string) string {
	matches = slices.Compact(slices.Sorted(slices.Values(matches)))
	if len(matches) <= 1 {
		return strings.Join(matches, "")
	}
	return "(" + strings.Join(matches, " || ") + ")"
}

// oneOf returns a constant, or a sorted set of constants, for a match.
func oneOf(values []string) string {
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	if len(values) == 1 {
		return values[0]
	}
	return "{" + strings.Join(values, ", ") + "}"
}

func setNames(parts []PodSetPart, family ipfamily.Family) []string {
	var names []string
	for _, part := range parts {
		names = append(names, "$"+setName(PeersRef(part, family)))
	}
	return names
}

// groupName is the name of the port group of a set of pods.
func groupName(set string) string { return setName(SubjectsRef(set)) }

// cut returns a name of an ACL, which has at most maxACLName bytes.
func cut(s string) string { return s[:min(len(s), maxACLName)] }
