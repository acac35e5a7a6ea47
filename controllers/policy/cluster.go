// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/internal/ipfamily"
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
	// first is the priority of the first rule of a direction. Each following rule has the next lower priority.
	first   int
	subject clusterPeer
	ingress []clusterRule
	egress  []clusterRule
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
	for i, rule := range p.ingress {
		c.clusterRule(translate.Ingress, i, p.first-i, rule, nodes)
	}
	for i, rule := range p.egress {
		c.clusterRule(translate.Egress, i, p.first-i, rule, nodes)
	}
	return c.compiled
}

func (c *compiler) clusterRule(d translate.Direction, i, priority int, in clusterRule, nodes nodesOf) {
	where := fmt.Sprintf("%s rule %d", d, i)
	if in.action == "" {
		c.problem("%s: its action is unknown to this version", where)
		return
	}
	closes := in.action != nb.ACLActionAllowRelated
	rule := translate.PolicyRule{Key: fmt.Sprintf("%s/%d", d, i), Direction: d, Priority: priority, Action: in.action}
	before := len(c.problems)
	p := c.clusterPeers(where, in.peers, nodes)
	if closes && len(c.problems) > before {
		p, rule.Action = peers{any: true}, nb.ACLActionDrop
	}
	before = len(c.problems)
	plain, named := c.clusterPorts(where, in.ports)
	wrong := closes && len(c.problems) > before
	if wrong {
		rule.Action = nb.ACLActionDrop
	}
	all := len(in.ports) == 0 || wrong
	if all {
		plain, named = nil, nil
	}
	if all || len(plain) > 0 {
		rule := rule
		rule.Ports = plain
		c.put(rule, p)
	}
	for _, port := range named {
		c.addNamedPort(rule, p, port)
	}
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
