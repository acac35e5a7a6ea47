// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
)

// numbers returns the port numbers for which a set's named port stands on the members of the set.
type numbers func(podset.Selector) []int32

// compiled is a policy expressed in sets of pods.
type compiled struct {
	translate.PolicyInputs

	// group replaces PolicyInputs for a security group.
	group *translate.SecurityGroupInputs
	uses  []podset.Selector
	// problems describe for the user the parts of the policy that cannot be expressed. These parts allow nothing.
	problems []string
	// unnamed are the named ports of ingress rules that no subject of the policy has, and unnamedPeers those of egress rules that no peer has. Their rules
	// allow nothing.
	unnamed, unnamedPeers []string
	// flows is the sum of translate.PolicyRule.Flows over the rules of a NetworkPolicy.
	flows int
	// logRate is the maximum of packets per second that a NetworkPolicy adds to the logs of its namespace on a node. limitLogs sets it to 0 if no rule logs.
	logRate int
	// logLeft is the time after which a policy with AnnotationLogDropsUntil logs less; 0 without it.
	logLeft time.Duration
	// logProblem is the reason why a policy logs less than its annotations request.
	logProblem string
}

// rows returns the rows that belong to the policy's owner.
func (c *compiled) rows() []desired.Row {
	switch {
	case c.group != nil:
		return translate.SecurityGroup(*c.group)
	case c.Subjects != "":
		return translate.Policy(c.PolicyInputs)
	}
	return nil
}

// refuse removes all rules of a policy that exceeds the bound of its namespace, except the default rules, which isolate its pods. The policy
// keeps its sets in use, because the numbers of its named ports are a part of its flows.
func (c *compiled) refuse() {
	c.Rules = slices.DeleteFunc(c.Rules, func(r translate.PolicyRule) bool { return r.Action != nb.ACLActionDrop })
	c.problems = append(c.problems, fmt.Sprintf("the rules of this policy are ignored: together with the older NetworkPolicies of its namespace it "+
		"costs a node more than %d flows: delete or shorten some of them", maxNamespaceFlows))
}

// compiler expresses the rules of one policy in sets of pods.
type compiler struct {
	compiled

	numbers   numbers
	namespace string
	subjects  podset.Selector
	peerRole  podset.Role
}

// use records that the policy needs a set, and returns the name of the set.
func (c *compiler) use(s podset.Selector) string {
	if !slices.Contains(c.uses, s) {
		c.uses = append(c.uses, s)
	}
	return s.Name()
}

func (c *compiler) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// networkPolicy compiles a NetworkPolicy. Without a valid podSelector it returns only problems: there are no pods to isolate.
func networkPolicy(np *networkingv1.NetworkPolicy, numbers numbers) compiled {
	c := &compiler{numbers: numbers, namespace: np.Namespace, peerRole: podset.Peers}
	c.Owner = translate.NetworkPolicyOwner(np.Namespace, np.Name)
	c.Title, c.Tier = "np/"+np.Name+"."+np.Namespace, translate.TierPolicy
	options, problems := readOptions(np.Annotations)
	c.problems = append(c.problems, problems...)
	if !options.applies {
		return c.compiled
	}
	pods, err := podset.Labels(&np.Spec.PodSelector)
	if err != nil {
		c.problem("podSelector: %v: no pod is isolated by this policy", err)
		return c.compiled
	}
	c.subjects = podset.Selector{Role: podset.Subjects, Namespace: np.Namespace, Pods: pods}
	c.Subjects, c.logRate = c.use(c.subjects), options.logRate
	if has(np, networkingv1.PolicyTypeIngress) {
		for i := range np.Spec.Ingress {
			c.rule(translate.Ingress, i, np.Spec.Ingress[i].From, np.Spec.Ingress[i].Ports)
		}
		c.deny(translate.Ingress, options.lax)
	}
	if has(np, networkingv1.PolicyTypeEgress) {
		for i := range np.Spec.Egress {
			c.rule(translate.Egress, i, np.Spec.Egress[i].To, np.Spec.Egress[i].Ports)
		}
		c.deny(translate.Egress, options.lax)
	}
	for i := range c.Rules {
		c.Rules[i].Log = options.log[c.Rules[i].Action]
	}
	return c.compiled
}

// has reports whether a policy has a direction. Without policyTypes, a policy has ingress, and egress if it has egress rules.
func has(np *networkingv1.NetworkPolicy, t networkingv1.PolicyType) bool {
	if len(np.Spec.PolicyTypes) == 0 {
		return t == networkingv1.PolicyTypeIngress || len(np.Spec.Egress) > 0
	}
	return slices.Contains(np.Spec.PolicyTypes, t)
}

// deny adds the default rule, which drops traffic that no rule allows.
func (c *compiler) deny(d translate.Direction, lax bool) {
	rule := translate.PolicyRule{
		Key: string(d) + "/default", Direction: d, Priority: translate.PriorityPolicyDrop, Action: nb.ACLActionDrop, Any: true,
	}
	if lax {
		rule.Ports = []translate.PolicyPort{{Protocol: "tcp"}, {Protocol: "udp"}, {Protocol: "sctp"}}
	}
	c.Rules = append(c.Rules, rule)
	c.flows += rule.Flows()
}

// rule compiles one rule: one PolicyRule for its numbered ports, and one for each number of each named port. A rule with which the policy
// exceeds a bound is omitted. A rule with too many flows keeps its sets in use: otherwise its named ports would have no numbers in the next
// pass, and the rule would fit.
func (c *compiler) rule(d translate.Direction, i int, from []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	where := fmt.Sprintf("%s rule %d", d, i)
	rule := translate.PolicyRule{
		Key: fmt.Sprintf("%s/%d", d, i), Direction: d, Priority: translate.PriorityPolicyAllow, Action: nb.ACLActionAllowRelated,
	}
	peers := c.peers(where, from)
	plain, named := c.ports(where, ports)
	if n := len(peers.selectors) + len(named)*(1+len(peers.selectors)); len(c.uses)+n > maxPolicySets {
		c.problem("%s: with it the policy would have more than %d sets of pods: write fewer selectors or named ports", where, maxPolicySets)
		return
	}
	before, flows := len(c.Rules), c.flows
	if len(ports) == 0 || len(plain) > 0 {
		rule := rule
		rule.Ports = plain
		c.put(rule, peers)
	}
	for _, port := range named {
		c.addNamedPort(rule, peers, port)
	}
	for _, r := range c.Rules[before:] {
		flows += r.Flows()
	}
	if flows > maxPolicyFlows {
		c.Rules = c.Rules[:before]
		c.problem("%s: with it the policy would cost a node %d flows, more than %d: write fewer rules, peers or ports", where, flows, maxPolicyFlows)
		return
	}
	c.flows = flows
}

// peers are the remote sides of a rule: any, or the listed sets and networks.
type peers struct {
	any       bool
	selectors []podset.Selector
	networks  []netip.Prefix
}

// put adds a rule with its peers.
func (c *compiler) put(rule translate.PolicyRule, p peers) {
	rule.Any, rule.Networks = p.any, p.networks
	for _, s := range p.selectors {
		rule.Sets = append(rule.Sets, translate.PodSetPart{Name: c.use(s)})
	}
	if rule.Any || len(rule.Sets)+len(rule.Networks) > 0 {
		c.Rules = append(c.Rules, rule)
	}
}

// port is a named port.
type port struct {
	name     string
	protocol corev1.Protocol
}

// addNamedPort adds the rules for a named port. The destination pods define its number: the subjects of the policy for ingress, the peers for
// egress.
func (c *compiler) addNamedPort(rule translate.PolicyRule, p peers, port port) {
	withPort := func(s podset.Selector) podset.Selector {
		s.Role, s.Port, s.Protocol = c.peerRole, port.name, string(port.protocol)
		return s
	}
	key := fmt.Sprintf("%s/%s-%s", rule.Key, port.protocol, port.name)
	at := func(number int32) translate.PolicyRule {
		r := rule
		r.Key = fmt.Sprintf("%s/%d", key, number)
		r.Ports = []translate.PolicyPort{{Protocol: protocol(port.protocol), First: number, Last: number}}
		return r
	}
	if rule.Direction == translate.Ingress {
		if set := withPort(c.subjects); len(c.numbers(set)) == 0 && !slices.Contains(c.unnamed, port.name) {
			c.unnamed = append(c.unnamed, port.name)
		}
		c.towards(at, withPort(c.subjects), p)
		return
	}
	known := 0
	if p.any || len(p.networks) > 0 { // all pods that have the port
		all := withPort(podset.Selector{})
		c.towards(at, all, peers{any: p.any, networks: p.networks})
		known += len(c.numbers(all))
	}
	for _, s := range p.selectors {
		set := withPort(s)
		name := c.use(set)
		known += len(c.numbers(set))
		for _, number := range c.numbers(set) {
			r := at(number)
			r.Key += "/" + name
			r.Sets = []translate.PodSetPart{{Name: name, Number: number}}
			c.Rules = append(c.Rules, r)
		}
	}
	if known == 0 && !slices.Contains(c.unnamedPeers, port.name) {
		c.unnamedPeers = append(c.unnamedPeers, port.name)
	}
}

// towards adds one rule for each number of a named port in a set of destination pods.
func (c *compiler) towards(at func(number int32) translate.PolicyRule, set podset.Selector, p peers) {
	name := c.use(set)
	for _, number := range c.numbers(set) {
		r := at(number)
		r.To = []translate.PodSetPart{{Name: name, Number: number}}
		c.put(r, p)
	}
	if len(c.numbers(set)) == 0 {
		for _, s := range p.selectors { // so that they are complete when a pod with the port is created
			c.use(s)
		}
	}
}

// peers reads the peers of a rule. Invalid entries are reported as problems and match nothing.
func (c *compiler) peers(where string, list []networkingv1.NetworkPolicyPeer) peers {
	if len(list) == 0 {
		return peers{any: true}
	}
	var out peers
	var addresses netipx.IPSetBuilder
	for i, peer := range list {
		where := fmt.Sprintf("%s, peer %d", where, i)
		switch {
		case peer.IPBlock != nil && (peer.PodSelector != nil || peer.NamespaceSelector != nil):
			c.problem("%s: ipBlock and selectors exclude each other: write two peers", where)
		case peer.IPBlock != nil:
			if block, err := readBlock(peer.IPBlock); err != nil {
				c.problem("%s: %v", where, err)
			} else {
				addresses.AddSet(block)
			}
		case peer.PodSelector == nil && peer.NamespaceSelector == nil:
			c.problem("%s: it is an empty peer: write podSelector, namespaceSelector or ipBlock", where)
		default:
			if s, err := c.selector(peer.NamespaceSelector, peer.PodSelector); err != nil {
				c.problem("%s: %v", where, err)
			} else if !slices.Contains(out.selectors, s) {
				out.selectors = append(out.selectors, s)
			}
		}
	}
	var err error
	if out.networks, err = networksOf(&addresses); err != nil {
		c.problem("%s: %v", where, err)
	}
	return out
}

// selector returns the set of the pods that a peer selects.
func (c *compiler) selector(namespaces, pods *metav1.LabelSelector) (podset.Selector, error) {
	s := podset.Selector{Role: c.peerRole}
	var err error
	if s.Pods, err = podset.Labels(pods); err != nil {
		return s, fmt.Errorf("podSelector: %w", err)
	}
	if namespaces == nil {
		s.Namespace = c.namespace
		return s, nil
	}
	if s.Namespaces, err = podset.Labels(namespaces); err != nil {
		return s, fmt.Errorf("namespaceSelector: %w", err)
	}
	return s, nil
}

// ports reads the ports of a rule. Invalid entries are reported as problems and match nothing.
func (c *compiler) ports(where string, list []networkingv1.NetworkPolicyPort) (plain []translate.PolicyPort, named []port) {
	for i, p := range list {
		where := fmt.Sprintf("%s, port %d", where, i)
		of := corev1.ProtocolTCP
		if p.Protocol != nil {
			of = *p.Protocol
		}
		out := translate.PolicyPort{Protocol: protocol(of)}
		switch {
		case out.Protocol == "":
			c.problem("%s: protocol %s is not TCP, UDP or SCTP", where, of)
			continue
		case p.Port == nil && p.EndPort != nil:
			c.problem("%s: endPort needs port", where)
			continue
		case p.Port == nil:
		case p.Port.StrVal != "" && p.EndPort != nil:
			c.problem("%s: endPort needs a number as port, not the name %s", where, p.Port.StrVal)
			continue
		case p.Port.StrVal != "":
			if name := (port{name: p.Port.StrVal, protocol: of}); !slices.Contains(named, name) {
				named = append(named, name)
			}
			continue
		default:
			out.First, out.Last = p.Port.IntVal, p.Port.IntVal
			if p.EndPort != nil {
				out.Last = *p.EndPort
			}
			if out.First < 1 || out.Last < out.First || out.Last > 65535 {
				c.problem("%s: there are no ports %d to %d", where, out.First, out.Last)
				continue
			}
		}
		plain = append(plain, out)
	}
	return plain, named
}

// protocol returns the name of a protocol in OVN matches, or "" for a protocol without ports.
func protocol(p corev1.Protocol) string {
	switch p {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return strings.ToLower(string(p))
	}
	return ""
}
