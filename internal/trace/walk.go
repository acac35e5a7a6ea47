// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Run answers a query.
func Run(of *Snapshot, q Query) Answer {
	s := *of
	s.owners = s.podsByAddress()
	s.policies = newModel(&s)
	s.policies.addPolicies(&s)
	answer := Answer{From: q.From.String(), To: q.To.String(), Unread: s.Unread}
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		if t, is := s.trace(q, family); is {
			answer.Traces = append(answer.Traces, t)
		}
	}
	if len(answer.Traces) == 0 {
		answer.Traces = []Trace{s.noFamily(q)}
	}
	answer.summarize()
	return answer
}

// noFamily is the trace of two ends that have no family in common, or of which one has no address.
func (s *Snapshot) noFamily(q Query) Trace {
	t := Trace{Protocol: q.Protocol, Port: q.Port, Verdict: Dropped}
	for _, host := range []func(ipfamily.Family) (host, *problem){
		func(family ipfamily.Family) (host, *problem) { return s.source(q.From, family) },
		func(family ipfamily.Family) (host, *problem) { return s.host(q.To, family, "") },
	} {
		for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			if _, problem := host(family); problem != nil {
				t.Family = family.String()
				t.Steps = append(t.Steps, problem.step)
				t.Verdict, t.DecidedBy, t.Change = problem.verdict, problem.step.Object, problem.change
				return t
			}
		}
	}
	t.Steps = []Step{{Effect: Drops, Text: fmt.Sprintf("%s and %s have no address family in common", q.From, q.To)}}
	t.Change = "give both an address of one family"
	return t
}

// problem is the reason why an end has no address.
type problem struct {
	step    Step
	verdict Verdict
	change  string
}

// host returns the host of an end for a family. Its address is not valid if the end has none of the family; problem is then nil if it has one of the other.
func (s *Snapshot) host(e End, family ipfamily.Family, vpc string) (host, *problem) {
	switch {
	case e.Pod.Name != "":
		o := Object{Kind: "Pod", Namespace: e.Pod.Namespace, Name: e.Pod.Name}
		pod := s.pod(e.Pod)
		if pod == nil {
			return host{}, s.missing(o, ResourcePods, "pods,services")
		}
		h, text, change := s.podHost(pod, family)
		if text != "" {
			if other, t, _ := s.podHost(pod, otherFamily(family)); t == "" && other.addr.IsValid() {
				return host{}, nil
			}
			return host{}, &problem{Step{Drops, &o, text}, Dropped, change}
		}
		return h, nil
	case e.Node != "":
		own, join := s.nodeAddresses(e.Node)
		if len(own)+len(join) == 0 {
			return host{}, s.missing(Object{Kind: "Node", Name: e.Node}, ResourceNodes, "nodes")
		}
		return host{kind: aNode, node: e.Node, addr: first(own, family)}, nil
	case e.Service.Name != "":
		svc := s.service(e.Service)
		if svc == nil {
			return host{}, s.missing(Object{Kind: "Service", Namespace: e.Service.Namespace, Name: e.Service.Name}, ResourceServices, "services")
		}
		return s.serviceHost(svc, family)
	}
	if addr := first(e.Addrs(), family); addr.IsValid() {
		return s.hostAt(addr, vpc), nil
	}
	return host{}, nil
}

func otherFamily(f ipfamily.Family) ipfamily.Family {
	if f == ipfamily.IPv4 {
		return ipfamily.IPv6
	}
	return ipfamily.IPv4
}

// trace returns the trace of a family; false if one of the ends does not have it.
func (s *Snapshot) trace(q Query, family ipfamily.Family) (Trace, bool) {
	from, problem := s.source(q.From, family)
	if problem != nil || !from.addr.IsValid() {
		return Trace{}, false
	}
	to, problem := s.host(q.To, family, from.net.LogicalRouter)
	if problem != nil || !to.addr.IsValid() {
		return Trace{}, false
	}
	w := &walk{s: s, q: q, from: from, to: to}
	if w.named() && to.overlay() && to.net.LogicalRouter != cmp.Or(from.net.LogicalRouter, kubeovnv1.DefaultVpc) {
		w.elsewhere, w.to = s.podsAt(to.addr), host{kind: outside, addr: to.addr}
	}
	w.start()
	t := Trace{
		Family: family.String(), Source: from.addr, Destination: to.addr, Protocol: q.Protocol, Port: q.Port,
		Verdict: w.verdict(), Steps: w.steps, DecidedBy: w.decidedBy, Change: w.change, Endpoints: w.endpoints,
	}
	return t, true
}

// walk follows one packet.
type walk struct {
	s        *Snapshot
	q        Query
	from, to host
	m        *model
	loaded   map[string]bool // VPCs in the model
	// elsewhere are the pods of other VPCs with the destination, if the query has its address and no host of the sender's VPC has it.
	elsewhere []host
	// nat are the applied rules for external addresses by VPC, of those in the model.
	nat map[string][]natRule
	// unused are routes of VPCs in the model whose BFD sessions are down.
	unused map[string][]unusedRoute

	steps     []Step
	dropped   bool
	delivered bool
	unclear   bool
	decidedBy *Object
	change    string
	endpoints []Endpoint
	// routesOnly: rules with a state let the packet pass, because it belongs to a connection.
	routesOnly bool
	// translated: the packet has another source than from's, so that answers come back to the node that translated it.
	translated bool
	// egress is the EgressAddress whose policy led the packet to its node.
	egress string
	// entered: a router got the packet from the physical network.
	entered bool
}

func (w *walk) verdict() Verdict {
	switch {
	case w.dropped:
		return Dropped
	case w.unclear || !w.delivered:
		return CannotTell
	}
	return Delivered
}

func (w *walk) say(effect Effect, o *Object, format string, args ...any) {
	w.steps = append(w.steps, Step{Effect: effect, Object: o, Text: fmt.Sprintf(format, args...)})
}

// drop ends the walk: an object stops the packet.
func (w *walk) drop(o *Object, change, format string, args ...any) {
	w.say(Drops, o, format, args...)
	w.dropped, w.decidedBy, w.change = true, o, change
}

// doubt records that a step is not certain.
func (w *walk) doubt(o *Object, format string, args ...any) {
	w.unclear = true
	text := fmt.Sprintf(format, args...)
	if !slices.ContainsFunc(w.steps, func(s Step) bool { return s.Text == text }) {
		w.steps = append(w.steps, Step{Effect: Unclear, Object: o, Text: text})
	}
}

// needs reports whether the objects of a resource were read, and otherwise records the missing ones.
func (w *walk) needs(resource, namespace, what string) bool {
	u := w.s.unread(resource, namespace)
	if u == nil {
		return true
	}
	w.doubt(nil, "it is not known %s: %s is not permitted", what, u)
	return false
}

func (w *walk) deliver(format string, args ...any) {
	w.delivered = true
	w.say(Passes, nil, format, args...)
}

// ended reports whether the walk has an end.
func (w *walk) ended() bool { return w.dropped || w.delivered }

// fork returns a walk from here with other ends, without steps.
func (w *walk) fork(from, to host) *walk {
	other := *w
	other.from, other.to, other.steps, other.endpoints, other.unclear = from, to, nil, nil, false
	other.load()
	return &other
}

// branch is a fork for another destination of the same sender. It shares the model, because Services have many endpoints.
func (w *walk) branch(to host) *walk {
	if w.s.unread(ResourceSubnets, "") != nil { // the model has the subnets of both ends only
		return w.fork(w.from, to)
	}
	other := *w
	other.to, other.steps, other.endpoints, other.unclear = to, nil, nil, false
	other.addVague(to)
	return &other
}

// load makes the model for the current ends.
func (w *walk) load() {
	w.m, w.loaded, w.nat, w.unused = w.s.policies.clone(), map[string]bool{}, map[string][]natRule{}, map[string][]unusedRoute{}
	w.addVague(w.from)
	w.addVague(w.to)
}

// addVague records the address of a host whose sets are not known.
func (w *walk) addVague(h host) {
	if h.kind == hidden || h.kind == aPod && w.s.namespace(h.pod.Namespace) == nil && w.s.unread(ResourceNamespaces, h.pod.Namespace) != nil {
		w.m.vague[h.addr] = true
	}
}

// packet returns the packet as it leaves from.
func (w *walk) packet() packet {
	p := packet{model: w.m, src: w.from.addr, dst: w.to.addr, protocol: w.q.Protocol, port: w.q.Port, source: w.q.SourcePort, chassis: w.from.node}
	if p.source == 0 {
		p.source = ephemeral
	}
	if w.routesOnly { // it comes from the port that the connection was opened to
		p.port, p.source = p.source, p.port
	}
	if w.from.kind == aPod {
		p.mac, p.inport, p.resident = w.from.net.MAC, w.from.port(), w.from.port()
		if w.q.SourceMAC != nil {
			p.mac = w.q.SourceMAC
		}
	}
	if spoofed := w.q.SourceAddress; spoofed.IsValid() && familyOf(spoofed) == familyOf(p.src) {
		p.src = spoofed
	}
	return p
}

// start follows the packet from its source.
func (w *walk) start() {
	w.load()
	w.routesOnly = w.q.Answer
	if w.q.Answer {
		w.say(Notes, nil, "%s answers a connection that %s has opened: policies let its packets pass", w.from, w.to)
	}
	for _, h := range []host{w.from, w.to} {
		if w.ready(h); w.ended() {
			return
		}
	}
	if w.q.Protocol == Neighbour {
		w.neighbour()
		return
	}
	w.introduce()
	defer w.conclude()
	switch w.from.kind {
	case aPod:
		w.fromPod()
	case aNode:
		w.fromNodeItself()
	case outside, hidden, unused:
		w.fromOutside()
	}
	if w.delivered && !w.dropped && w.to.kind == aPod && w.from.kind == aPod && !w.translated && !w.q.Answer {
		w.back()
	}
}

// back checks that answers find their way: the router of each side needs a route.
func (w *walk) back() {
	if w.from.net.LogicalSwitch == w.to.net.LogicalSwitch {
		return
	}
	answer := w.fork(w.to, w.from)
	answer.routesOnly, answer.delivered = true, false
	answer.leaveSwitch(answer.packet())
	if !answer.dropped {
		w.unclear = w.unclear || answer.unclear
		return
	}
	last := answer.steps[len(answer.steps)-1]
	w.drop(answer.decidedBy, answer.change, "the answer of %s is lost: %s", w.to, last.Text)
}

// ready checks that a host can have packets: its port and its node.
func (w *walk) ready(h host) {
	if h.pod != nil {
		w.portOf(h)
	}
	if h.node == "" || w.ended() {
		return
	}
	if h.kind == aPod && h.net.ProviderNetwork != "" {
		w.physical(h)
	}
	if w.ended() {
		return
	}
	if why := w.s.nodeProblem(h.node); why != "" {
		w.drop(&Object{Kind: "Node", Name: h.node}, "repair the node: `kubectl describe node "+h.node+"` has its conditions, `kubectl ko diagnose node "+h.node+"` checks it",
			"%s", why)
	}
}

// physical checks that the node of a pod on an underlay subnet is connected to the physical network.
func (w *walk) physical(h host) {
	name := h.net.ProviderNetwork
	o := &Object{Kind: "ProviderNetwork", Name: name}
	i := slices.IndexFunc(w.s.Networks, func(n *kubeovnv1.ProviderNetwork) bool { return n.Name == name })
	if i < 0 {
		if w.needs(ResourceNetworks, "", "whether node "+h.node+" is connected to physical network "+name) {
			w.drop(o, "create it, or move the pod to another subnet", "ProviderNetwork %s of %s does not exist", name, h)
		}
		return
	}
	status := &w.s.Networks[i].Status
	if slices.Contains(status.ReadyNodes, h.node) {
		return
	}
	why := "it is not among readyNodes"
	for _, c := range status.Conditions {
		if c.Node == h.node && c.Message != "" {
			why = c.Message
		}
	}
	w.drop(o, fmt.Sprintf("correct the interface of node %s (defaultInterface or customInterfaces of ProviderNetwork %s), or run the pod on one of readyNodes", h.node, name),
		"node %s of %s is not connected to physical network %s: %s", h.node, h, name, why)
}

// portOf reports the state of a pod's port.
func (w *walk) portOf(h host) {
	for _, e := range w.s.Events {
		if e.InvolvedObject.Namespace != h.pod.Namespace || e.InvolvedObject.Name != h.pod.Name || e.InvolvedObject.UID != "" && e.InvolvedObject.UID != h.pod.UID {
			continue
		}
		switch e.Reason {
		case kubeovnv1.ReasonPortMissing:
			w.drop(h.object(), "create the pod again, after `kubectl ko diagnose node "+h.node+"` shows why its port cannot be added",
				"the port of %s is missing in Open vSwitch of node %s: %s", h, h.node, e.Message)
			return
		case kubeovnv1.ReasonPortRestored:
			w.say(Notes, h.object(), "the port of %s was missing in Open vSwitch until it was added again: %s", h, e.Message)
		}
	}
	if h.kind == aPod && !h.net.Routed {
		w.doubt(h.object(), "the policies and routes of %s are not all applied yet", h)
	}
	if h.pod == w.to.pod && !isReady(h.pod) && h.pod != w.from.pod {
		w.say(Notes, h.object(), "%s is not ready: packets reach it, but its process may not answer", h)
	}
}

// neighbour follows an ARP request or a neighbour solicitation.
func (w *walk) neighbour() {
	if w.from.kind != aPod {
		w.doubt(nil, "the physical network answers neighbours of %s, which the API does not show", w.from)
		return
	}
	name := w.from.net.LogicalSwitch
	here := slices.ContainsFunc(w.from.net.CIDRs, func(p netip.Prefix) bool { return p.Contains(w.to.addr) })
	switch {
	case slices.Contains(w.from.net.Gateways, w.to.addr) && w.from.net.ProviderNetwork == "":
		w.deliver("the router of Vpc %s answers for its address in subnet %s", w.from.net.LogicalRouter, name)
	case !here:
		w.drop(&Object{Kind: "Subnet", Name: name}, "ask for the gateway instead, "+ipfamily.Join(w.from.net.Gateways),
			"%s is not in subnet %s (%s), so that nothing there answers for it: packets to it go to the gateway", w.to.addr, name, ipfamily.Join(w.from.net.CIDRs))
	case w.to.kind == aPod && w.to.net.LogicalSwitch == name:
		w.deliver("OVN answers for %s, which has a port in subnet %s", w.to, name)
	case w.from.net.ProviderNetwork != "" || w.to.kind == hidden:
		w.doubt(&Object{Kind: "Subnet", Name: name}, "it is not known whether a host of the physical network, or a pod that cannot be read, answers for %s", w.to.addr)
	default:
		w.drop(&Object{Kind: "Subnet", Name: name}, "use an address that a pod of the subnet has", "no port of subnet %s has %s, so that nothing answers", name, w.to.addr)
	}
}
