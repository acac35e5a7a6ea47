// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
)

// clusterPolicy is the common form of the kinds of sigs.k8s.io/network-policy-api.
type clusterPolicy struct {
	owner desired.Owner
	title string
	tier  int
	// first is the priority of the first rule of a direction, and room the number of priorities from there down. more is the end of the message that there
	// is no room for all rules.
	first, room int
	more        string
	subject     clusterPeer
	ingress     []clusterRule
	egress      []clusterRule
	// problem is the reason why the whole policy is not applied; "" if there is none. restricted is a problem with which it applies otherwise.
	problem, restricted string
}

type clusterRule struct {
	action nb.ACLAction // empty: unknown
	peers  []clusterPeer
	ports  []clusterPort
}

// clusterPeer has exactly one kind of peer set.
type clusterPeer struct {
	namespaces, pods *metav1.LabelSelector // pods selects pods; nil selects all pods of namespaces
	nodes            *metav1.LabelSelector
	networks         []string
	domains          bool
}

// clusterPort is a range of ports or a named port. Without both it stands for all ports of the protocol.
type clusterPort struct {
	protocol    corev1.Protocol
	first, last int32
	name        string
}

// nodesOf returns the addresses of the nodes that a selector matches, as networks.
type nodesOf func(selector *metav1.LabelSelector) ([]netip.Prefix, error)

// clusterNetworkPolicy compiles a cluster-wide policy. In an allow rule, a part that cannot be expressed matches nothing. In a deny rule it matches
// everything. A pass rule with such a part denies all peers or all ports: without the rule, a later one could allow what it passes to other policies.
func clusterNetworkPolicy(p clusterPolicy, numbers numbers, nodes nodesOf) compiled {
	c := &compiler{numbers: numbers, peerRole: podset.Pods}
	c.Owner, c.Title, c.Tier = p.owner, p.title, p.tier
	if p.problem != "" {
		c.problem("%s", p.problem)
		return c.compiled
	}
	if p.restricted != "" {
		c.problem("%s", p.restricted)
	}
	subjects, err := p.subject.selector(podset.Subjects)
	if err != nil {
		c.problem("subject: %v: no pod is a subject of this policy", err)
		return c.compiled
	}
	// Pods in security groups are not subjects of baseline policies: groups leave no traffic undecided, and their ACLs in the last tier
	// have no priority above baseline policies.
	subjects.Ungrouped = p.tier == translate.TierBaseline
	c.subjects = subjects
	c.Subjects = c.use(subjects)
	c.clusterRules(translate.Ingress, p, p.ingress, nodes)
	c.clusterRules(translate.Egress, p, p.egress, nodes)
	return c.compiled
}

// readRule is a rule whose peers and ports are read.
type readRule struct {
	translate.PolicyRule

	where string
	peers peers
	// all: the rule is for all ports. Otherwise it is for plain and named.
	all   bool
	plain []translate.PolicyPort
	named []port
}

// clusterRules adds the rules of one direction.
func (c *compiler) clusterRules(d translate.Direction, p clusterPolicy, rules []clusterRule, nodes nodesOf) {
	var read []readRule
	for i, in := range rules {
		if in.action == "" {
			c.problem("%s rule %d: its action is unknown to this version", d, i)
			continue
		}
		read = append(read, c.readRule(d, i, in, nodes))
	}
	for _, r := range c.placed(p, read) {
		if r.all || len(r.plain) > 0 {
			rule := r.PolicyRule
			rule.Ports = r.plain
			c.put(rule, r.peers)
		}
		for _, port := range r.named {
			c.addNamedPort(r.PolicyRule, r.peers, port)
		}
	}
}

// placed returns rules with their priorities. Consecutive rules with one action share a priority, because their order has no effect. Where the policy has no
// room for another action, its last priority closes: no further rule allows, and a pass rule denies.
func (c *compiler) placed(p clusterPolicy, rules []readRule) []readRule {
	level, last := 0, p.first-p.room+1
	for i := range rules {
		if i > 0 && rules[i].Action != rules[i-1].Action {
			level++
		}
		rules[i].Priority = p.first - level
	}
	if level < p.room {
		return rules
	}
	at := slices.IndexFunc(rules, func(r readRule) bool { return r.Priority <= last && r.Action != nb.ACLActionDrop })
	c.problem("%s: the rules before it change their action so often that this priority has no room for it: from here on, no rule allows, and pass rules deny: "+
		"put rules with the same action together%s", rules[at].where, p.more)
	rules = slices.DeleteFunc(rules, func(r readRule) bool { return r.Priority <= last && r.Action == nb.ACLActionAllowRelated })
	for i := range rules {
		if rules[i].Priority <= last {
			rules[i].Priority, rules[i].Action = last, nb.ACLActionDrop
		}
	}
	return rules
}

func (c *compiler) readRule(d translate.Direction, i int, in clusterRule, nodes nodesOf) readRule {
	where := fmt.Sprintf("%s rule %d", d, i)
	closes := in.action != nb.ACLActionAllowRelated
	r := readRule{PolicyRule: translate.PolicyRule{Key: fmt.Sprintf("%s/%d", d, i), Direction: d, Action: in.action}, where: where}
	before := len(c.problems)
	r.peers = c.clusterPeers(where, in.peers, nodes)
	if closes && len(c.problems) > before {
		r.peers, r.Action = peers{any: true}, nb.ACLActionDrop
	}
	before = len(c.problems)
	r.plain, r.named = c.clusterPorts(where, in.ports)
	wrong := closes && len(c.problems) > before
	if wrong {
		r.Action = nb.ACLActionDrop
	}
	if r.all = len(in.ports) == 0 || wrong; r.all {
		r.plain, r.named = nil, nil
	}
	return r
}

func (c *compiler) clusterPeers(where string, list []clusterPeer, nodes nodesOf) peers {
	var out peers
	for i, peer := range list {
		where := fmt.Sprintf("%s, peer %d", where, i)
		switch {
		case peer.domains:
			c.problem("%s: this version does not resolve domainNames: write networks", where)
		case peer.nodes != nil:
			addresses, err := nodes(peer.nodes)
			if err != nil {
				c.problem("%s: nodes: %v", where, err)
			}
			out.networks = append(out.networks, addresses...)
		case len(peer.networks) > 0:
			for _, network := range peer.networks {
				cidr, err := ipfamily.ParseCIDR(network)
				if err != nil {
					c.problem("%s: networks: %v", where, err)
					continue
				}
				out.networks = append(out.networks, cidr)
			}
		default:
			s, err := peer.selector(c.peerRole)
			if err != nil {
				c.problem("%s: %v", where, err)
			} else if !slices.Contains(out.selectors, s) {
				out.selectors = append(out.selectors, s)
			}
		}
	}
	return out
}

// selector returns the set of the pods that a peer or a subject selects.
func (p clusterPeer) selector(role podset.Role) (podset.Selector, error) {
	s := podset.Selector{Role: role}
	if p.namespaces == nil {
		return s, fmt.Errorf("it is of a kind that is unknown to this version")
	}
	var err error
	if s.Namespaces, err = podset.Labels(p.namespaces); err != nil {
		return s, fmt.Errorf("namespaces: %w", err)
	}
	if s.Pods, err = podset.Labels(p.pods); err != nil {
		return s, fmt.Errorf("pods: %w", err)
	}
	return s, nil
}

func (c *compiler) clusterPorts(where string, list []clusterPort) (plain []translate.PolicyPort, named []port) {
	for i, p := range list {
		of := protocol(p.protocol)
		switch {
		case of == "":
			c.problem("%s, port %d: protocol %q is not TCP, UDP or SCTP", where, i, p.protocol)
		case p.name != "":
			if name := (port{name: p.name, protocol: p.protocol}); !slices.Contains(named, name) {
				named = append(named, name)
			}
		case p.first != 0 && (p.first < 1 || p.last < p.first || p.last > 65535):
			c.problem("%s, port %d: there are no ports %d to %d", where, i, p.first, p.last)
		default:
			plain = append(plain, translate.PolicyPort{Protocol: of, First: p.first, Last: p.last})
		}
	}
	return plain, named
}
