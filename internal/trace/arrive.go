// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// conditionText returns the message of a False condition, in parentheses; "" if it is not False.
func conditionText(s *kubeovnv1.Subnet, conditionType string) string {
	if c := apimeta.FindStatusCondition(s.Status.Conditions, conditionType); c != nil && c.Status == metav1.ConditionFalse {
		return " (" + c.Message + ")"
	}
	return ""
}

// conditions notes that a Subnet has another spec than the applied one.
func (w *walk) conditions(name string) {
	for _, s := range w.s.Subnets {
		if s.Name != name {
			continue
		}
		for _, c := range []string{kubeovnv1.ConditionValidated, kubeovnv1.ConditionReady} {
			if text := conditionText(s, c); text != "" {
				w.say(Notes, &Object{Kind: translate.KindSubnet, Name: name}, "Subnet %s has condition %s False%s: its last valid spec applies", name, c, text)
				return
			}
		}
	}
}

// arrivesAt follows a packet from a router to the port of a subnet: to the destination, to a node, or to a pod that forwards it.
func (w *walk) arrivesAt(vpc string, way found, p packet) {
	name := way.port.Owner.Name
	if name == kubeovnv1.JoinSubnet {
		node := w.s.nodeWith(way.hop)
		switch {
		case node != "":
			w.atNode(node, p)
		case w.s.unread(ResourceRecords, "") != nil && w.s.unread(ResourceNodes, "") != nil:
			w.needs(ResourceNodes, "", "through which node the packet leaves")
		default:
			w.drop(&Object{Kind: translate.KindVpc, Name: vpc}, "wait until the node of the pod has joined the network: `kubectl ko status` lists nodes without network",
				"no node of Vpc %s carries packets of %s to %s", vpc, p.src, p.dst)
		}
		return
	}
	if way.hop != p.dst {
		via := w.s.hostAt(way.hop, vpc)
		if way.route != nil {
			w.say(Passes, &Object{Kind: translate.KindVpc, Name: vpc, Rule: "staticRoutes"}, "Vpc %s has a route to %s by next hop %s", vpc, way.route.row.IPPrefix, way.hop)
		}
		if via.kind == unused {
			w.drop(&Object{Kind: translate.KindVpc, Name: vpc, Rule: "staticRoutes"}, "correct the next hop, or start the pod that should have this address",
				"next hop %s is in subnet %s, where no pod has it", way.hop, name)
			return
		}
		w.doubt(via.object(), "%s gets the packet as next hop, and its routes are not known", via)
		return
	}
	_, p.inport = w.portsOf(vpc, name)
	if s := w.s.subnet(name); s != nil && s.Spec.LogicalGateway && s.Spec.Vlan != "" {
		w.say(Notes, &Object{Kind: translate.KindSubnet, Name: name}, "subnet %s is an underlay: the packet passes the node that hosts its logical gateway", name)
	}
	w.arrive(name, vpc, p)
}

// arrive delivers a packet to the port of a subnet's switch that has its destination. The packet comes from the router if vpc is not empty.
func (w *walk) arrive(subnet, vpc string, p packet) {
	w.conditions(subnet)
	if vpc != "" {
		w.acls(subnet, sends, p, nil)
	}
	if w.ended() {
		return
	}
	o := &Object{Kind: translate.KindSubnet, Name: subnet}
	switch {
	case w.to.kind == aPod && w.to.net.LogicalSwitch == subnet && w.to.addr == p.dst:
		p.outport, p.chassis, p.resident = w.to.port(), w.to.node, w.to.port()
		w.acls(subnet, receives, p, &w.to)
		if !w.dropped {
			w.deliver("the packet reaches %s (%s) on node %s", w.to, p.dst, w.to.node)
		}
	case w.to.kind == aPod && vpc != "" && w.to.net.LogicalRouter != vpc:
		w.otherVpc(vpc, &Object{Kind: translate.KindVpc, Name: vpc, Rule: "staticRoutes"})
	case w.to.kind == hidden:
		w.doubt(nil, "the owner of %s and its policies are not known: %s is not permitted", p.dst, w.missing(ResourcePods))
	case w.from.net.ProviderNetwork != "" && w.from.net.LogicalSwitch == subnet:
		w.doubt(o, "no pod has %s: the packet leaves through physical network %s, where a host may have it", p.dst, w.from.net.ProviderNetwork)
	default:
		w.drop(o, "use an address that a pod has", "%s is in subnet %s, and no pod has it", p.dst, subnet)
	}
}

func (w *walk) missing(resource string) string {
	if u := w.s.unread(resource, ""); u != nil {
		return u.String()
	}
	return "list " + resource
}

// transit follows a packet through the gateway router of a custom VPC, to the node that hosts it.
func (w *walk) transit(vpc string, p packet) {
	router := desired.Ref{Owner: translate.TransitOwner(vpc), Key: "router"}
	for _, port := range w.m.ports[router] {
		if port.Key == "outer" {
			p.inport = port.row.Name
		}
	}
	var drops bool
	rules := w.m.rules[router]
	var list []candidate
	for i := range rules {
		list = append(list, candidate{priority: rules[i].row.Priority, match: rules[i].row.Match, index: i, opens: rules[i].row.Action != nb.LogicalRouterPolicyActionDrop})
	}
	if outcomes := decide(list, p); outcomes[0] != none {
		drops = rules[outcomes[0]].row.Action == nb.LogicalRouterPolicyActionDrop
	}
	status := w.s.vpc(vpc).Status.Transit
	o := &Object{Kind: translate.KindVpc, Name: vpc, Rule: "clusterAccess"}
	switch {
	case drops:
		w.drop(&Object{Kind: translate.KindSubnet, Name: w.from.net.LogicalSwitch, Rule: "natOutgoing"}, "set natOutgoing of Subnet "+w.from.net.LogicalSwitch+" to true",
			"the gateway router of Vpc %s lets packets to Services pass, and other packets only of subnets with natOutgoing: %s is no Service", vpc, p.dst)
	case w.s.nodeProblem(status.Node) != "":
		w.drop(&Object{Kind: "Node", Name: status.Node}, "repair the node, or wait until another one replaces it", "%s, which carries the traffic of Vpc %s", w.s.nodeProblem(status.Node), vpc)
	default:
		source := first(ipfamily.ValidAddrs(status.Addresses...), familyOf(p.dst))
		w.say(Changes, o, "the gateway router of Vpc %s sends the packet through node %s, with %s as its source", vpc, status.Node, source)
		p.src, w.translated = source, true
		w.atNode(status.Node, p)
	}
}

// atNode follows a packet that reaches a node by its port on the subnet join.
func (w *walk) atNode(node string, p packet) {
	if why := w.s.nodeProblem(node); why != "" {
		w.drop(&Object{Kind: "Node", Name: node}, "repair the node", "%s, and the packet goes through it", why)
		return
	}
	if w.nodeService(node, p) || w.ended() {
		return
	}
	own, join := w.s.nodeAddresses(node)
	if slices.Contains(slices.Concat(own, join), p.dst) {
		w.deliver("the packet reaches node %s (%s): its own firewall and processes decide the rest", node, p.dst)
		return
	}
	switch {
	case w.to.kind == aPod && w.to.net.ProviderNetwork != "" && !w.translated:
		w.arriveUnderlay(p)
		return
	case w.to.kind == aPod:
		w.otherVpc(w.from.net.LogicalRouter, &Object{Kind: translate.KindVpc, Name: w.from.net.LogicalRouter})
		return
	}
	w.leaves(node, p)
}

// leaves reports how a packet leaves the cluster through a node.
func (w *walk) leaves(node string, p packet) {
	if w.rejected(node, p) {
		return
	}
	subnet := w.s.subnet(w.from.net.LogicalSwitch)
	o := &Object{Kind: translate.KindSubnet, Name: w.from.net.LogicalSwitch}
	if vpc := w.from.net.LogicalRouter; vpc == kubeovnv1.DefaultVpc && len(w.externalPorts(vpc)) > 0 && !w.needsRules("whether a rule for external addresses sends the packet elsewhere") {
		return
	}
	if w.from.kind == aPod && w.from.net.LogicalRouter == kubeovnv1.DefaultVpc && !w.needs(ResourceEgresses, "", "whether an EgressAddress selects the pod") {
		return
	}
	switch {
	case w.egress != "":
		w.leavesFixed(node, p)
	case w.translated:
		w.beyond(node, p, "the packet leaves the cluster through node %s, with the node's address", node)
	case subnet == nil:
		w.needs(ResourceSubnets, "", "whether Subnet "+o.Name+" has natOutgoing")
	case subnet.Spec.ExternalEgressGateway != "":
		w.doubt(o, "the packet leaves through node %s and router %s, with the pod's address: answers need a route to %s there", node, subnet.Spec.ExternalEgressGateway, subnet.Spec.CIDRBlock)
	case subnet.Spec.NATOutgoing:
		if rule := forwards(subnet, p); rule >= 0 {
			o.Rule = fmt.Sprintf("natOutgoingPolicyRules[%d]", rule)
			w.doubt(o, "Subnet %s, %s keeps the pod's address: the packet leaves through node %s, and answers need a route to %s", o.Name, o.Rule, node, subnet.Spec.CIDRBlock)
			return
		}
		w.translated = true
		o.Rule = "natOutgoing"
		w.say(Changes, o, "Subnet %s has natOutgoing: the packet leaves through node %s with the node's address%s", o.Name, node, egressText(subnet, node, p))
		w.beyond(node, p, "%s is outside of the cluster: the network there decides the rest", p.dst)
	default:
		o.Rule = "natOutgoing"
		w.unclear, w.change, w.decidedBy = true, "set natOutgoing of Subnet "+o.Name+" to true, unless the network outside has a route to "+subnet.Spec.CIDRBlock, o
		w.say(Unclear, o, "Subnet %s has no natOutgoing: the packet leaves through node %s with the pod's address, and answers come back only if the network outside has a route to %s",
			o.Name, node, subnet.Spec.CIDRBlock)
	}
}

func egressText(subnet *kubeovnv1.Subnet, node string, p packet) string {
	spec, err := gateway.Parse(&subnet.Spec)
	if err != nil || !gateway.Centralized(subnet) {
		return ""
	}
	if a := first(spec.EgressIPs(node), familyOf(p.dst)); a.IsValid() {
		return " " + a.String()
	}
	return ""
}

// forwards returns the index of the rule of natOutgoingPolicyRules by which a packet keeps its source; -1 if there is none.
func forwards(subnet *kubeovnv1.Subnet, p packet) int {
	matches := func(list []netip.Prefix, a netip.Addr) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
	}
	for i, r := range subnet.Spec.NATOutgoingPolicyRules {
		rule, err := gateway.ParseNATRule(r)
		if err == nil && matches(rule.Sources, p.src) && matches(rule.Destinations, p.dst) {
			if rule.Forward {
				return i
			}
			return -1
		}
	}
	return -1
}
