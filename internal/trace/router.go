// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation"
)

// maxRouters is the number of routers on a way. OVN's ttl ends longer ones.
const maxRouters = 8

// leaveSwitch follows a packet of a pod from its switch: to a port of the same switch, or to the router.
func (w *walk) leaveSwitch(p packet) {
	name, vpc := w.from.net.LogicalSwitch, w.from.net.LogicalRouter
	w.network(vpc)
	local := slices.ContainsFunc(w.from.net.CIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(p.dst) })
	onRouter := w.from.net.ProviderNetwork == "" || w.onRouter(name)
	switch {
	case local && !w.isRouters(translate.RouterRef(vpc), p.dst) && (w.to.kind != aPod || w.to.net.LogicalSwitch == name):
		w.arrive(name, "", p)
	case !onRouter:
		w.doubt(&Object{Kind: translate.KindSubnet, Name: name}, "the packet leaves through physical network %s: its gateway is a router there, whose routes are not known",
			w.from.net.ProviderNetwork)
	default:
		if s := w.s.subnet(name); s != nil && s.Spec.U2OInterconnection {
			w.doubt(&Object{Kind: translate.KindSubnet, Name: name}, "Subnet %s is an underlay with u2oInterconnection: whether its gateway or OVN's router forwards the packet depends on the pod's routes", name)
			return
		}
		inport, toRouter := w.portsOf(vpc, name)
		p.outport = toRouter
		w.acls(name, receives, p, nil)
		p.inport, p.outport = inport, ""
		w.route(vpc, p)
	}
}

// onRouter reports whether the router has a port in an underlay subnet.
func (w *walk) onRouter(name string) bool {
	s := w.s.subnet(name)
	return s != nil && s.Spec.OnRouter()
}

// portsOf returns the names of the router's port in a subnet, and of the switch's port to it.
func (w *walk) portsOf(vpc, subnet string) (router, onSwitch string) {
	for _, port := range w.m.ports[translate.RouterRef(vpc)] {
		if port.Owner == translate.SubnetOwner(subnet) {
			return port.row.Name, w.m.peers[port.row.Name]
		}
	}
	return "", ""
}

// found is a route of a router for a packet.
type found struct {
	// port of the router at which the packet leaves.
	port *owned[*nb.LogicalRouterPort]
	// hop is the next router, or the destination itself.
	hop   netip.Addr
	route *owned[*nb.LogicalRouterStaticRoute] // nil for a network of the router
}

// route follows a packet through the router of a VPC, and further.
func (w *walk) route(vpc string, p packet) {
	for range maxRouters {
		if w.ended() {
			return
		}
		w.network(vpc)
		ref := translate.RouterRef(vpc)
		if vpc != kubeovnv1.DefaultVpc && w.s.vpc(vpc) == nil && w.needs(ResourceVpcs, "", "which routes and policies Vpc "+vpc+" has") {
			w.drop(&Object{Kind: translate.KindVpc, Name: vpc}, "create it, or move the pod to a subnet of another one", "Vpc %s does not exist", vpc)
			return
		}
		if w.isRouters(ref, p.dst) {
			w.routerItself(vpc, p)
			return
		}
		way, ok := w.lookUp(ref, p)
		if !ok {
			w.noRoute(vpc, p)
			return
		}
		if !w.applyPolicies(vpc, ref, p, &way) {
			return
		}
		if way.port == nil {
			w.unreachable(vpc, way)
			return
		}
		switch name, isPeer := strings.CutPrefix(way.port.Key, "peer/"); {
		case isPeer:
			w.say(Passes, &Object{Kind: translate.KindVpc, Name: vpc}, "the router of Vpc %s sends the packet over the link to Vpc %s", vpc, name)
			p.inport = deref(way.port.row.Peer)
			vpc = name
			w.resolveIn(vpc)
			continue
		case way.port.Owner.Kind == translate.KindExternal:
			w.leavesExternally(vpc, way, p)
		case way.port.Owner.Kind == translate.KindTransit:
			w.transit(vpc, p)
		default:
			w.arrivesAt(vpc, way, p)
		}
		return
	}
	w.drop(&Object{Kind: translate.KindVpc, Name: vpc}, "correct the static routes of the linked VPCs, which lead back to one another", "the packet goes round in a loop of Vpcs")
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (w *walk) isRouters(router desired.Ref, addr netip.Addr) bool {
	return slices.ContainsFunc(w.m.ports[router], func(port owned[*nb.LogicalRouterPort]) bool {
		return slices.ContainsFunc(networks(port), func(n netip.Prefix) bool { return n.Addr() == addr })
	})
}

func networks(port owned[*nb.LogicalRouterPort]) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range port.row.Networks {
		if p, err := netip.ParsePrefix(text); err == nil {
			list = append(list, p)
		}
	}
	return list
}

func (w *walk) routerItself(vpc string, p packet) {
	if p.protocol == ICMP {
		w.deliver("%s is an address of the router of Vpc %s, which answers", p.dst, vpc)
		return
	}
	w.drop(&Object{Kind: translate.KindVpc, Name: vpc}, "ask for the address of a pod or a Service", "%s is an address of the router of Vpc %s, which answers pings only", p.dst, vpc)
}

// lookUp returns the route with the longest prefix. Networks of the router precede routes by destination, and these routes by source (ovn-northd(8), IP
// Routing). The first of several routes of one prefix stands for all of them.
func (w *walk) lookUp(router desired.Ref, p packet) (found, bool) {
	ports := w.m.ports[router]
	table := ""
	for _, port := range ports {
		if port.row.Name == p.inport {
			table = port.row.Options["route_table"]
		}
	}
	best, rank := found{}, -1
	for i := range ports {
		for _, network := range networks(ports[i]) {
			if network.Contains(p.dst) && network.Bits()*3+2 > rank {
				best, rank = found{port: &ports[i], hop: p.dst}, network.Bits()*3+2
			}
		}
	}
	for i := range w.m.routes[router] {
		r := &w.m.routes[router][i]
		prefix, err := netip.ParsePrefix(r.row.IPPrefix)
		hop, hopErr := netip.ParseAddr(r.row.Nexthop)
		if err != nil || hopErr != nil || r.row.RouteTable != table {
			continue
		}
		bySource := r.row.Policy != nil && *r.row.Policy == nb.LogicalRouterStaticRoutePolicySrcIP
		value, addr := prefix.Bits()*3+1, p.dst
		if bySource {
			value, addr = prefix.Bits()*3, p.src
		}
		if !prefix.Contains(addr) || value <= rank {
			continue
		}
		if port := w.towards(router, hop, r.row.OutputPort); port != nil { // OVN ignores a route whose next hop is in no network of the router
			best, rank = found{port: port, hop: hop, route: r}, value
		}
	}
	return best, rank >= 0
}

// towards returns the port of a router with a network that has an address, or the port with a name.
func (w *walk) towards(router desired.Ref, hop netip.Addr, output *string) *owned[*nb.LogicalRouterPort] {
	ports := w.m.ports[router]
	for i := range ports {
		if output != nil && ports[i].row.Name == *output ||
			output == nil && slices.ContainsFunc(networks(ports[i]), func(n netip.Prefix) bool { return n.Contains(hop) }) {
			return &ports[i]
		}
	}
	return nil
}

// applyPolicies evaluates the policies of a router. It reports whether the packet passes, and changes the way for a reroute.
func (w *walk) applyPolicies(vpc string, router desired.Ref, p packet, way *found) bool {
	rules := w.m.rules[router]
	list := make([]candidate, len(rules))
	for i := range rules {
		list[i] = candidate{
			priority: rules[i].row.Priority, match: rules[i].row.Match, index: i, opens: rules[i].row.Action != nb.LogicalRouterPolicyActionDrop, ofUser: rules[i].Owner.Kind == translate.KindVpc,
		}
	}
	outcomes := decide(list, p)
	if len(outcomes) > 1 {
		w.doubt(&Object{Kind: translate.KindVpc, Name: vpc}, "it is not known which policy of the router of Vpc %s decides", vpc)
		return false
	}
	if outcomes[0] == none {
		return true
	}
	rule := &rules[outcomes[0]]
	o := w.policyObject(vpc, rule)
	switch rule.row.Action {
	case nb.LogicalRouterPolicyActionDrop:
		w.policyDrops(o, rule, p)
		return false
	case nb.LogicalRouterPolicyActionReroute:
		way.route = nil
		way.hop = netip.Addr{}
		for _, hop := range rule.row.Nexthops {
			if a, err := netip.ParseAddr(hop); err == nil && familyOf(a) == familyOf(p.dst) {
				way.hop = a
				break
			}
		}
		way.port = w.towards(router, way.hop, nil)
		if rule.Owner.Kind == translate.KindEgressAddress {
			w.egress = rule.Owner.Name
			return true
		}
		w.say(Changes, o, "%s sends the packet to next hop %s", describe(o), way.hop)
	case nb.LogicalRouterPolicyActionAllow:
		if rule.Owner.Kind == translate.KindVpc {
			w.say(Passes, o, "%s lets the packet follow its route", describe(o))
		}
	}
	return true
}

func describe(o *Object) string {
	if o.Rule != "" {
		return o.String() + ", " + o.Rule
	}
	return o.String()
}

func (w *walk) policyObject(vpc string, rule *owned[*nb.LogicalRouterPolicy]) *Object {
	switch rule.Owner.Kind {
	case translate.KindVpc:
		o := &Object{Kind: translate.KindVpc, Name: vpc}
		router, _ := validation.Vpc(vpc, w.vpcSpec(vpc))
		for _, policy := range router.Policies {
			if policy.Priority == rule.row.Priority && strings.Contains(rule.row.Match, policy.Match) {
				o.Rule = fmt.Sprintf("policyRoutes[%d]", policy.Index)
			}
		}
		return o
	case translate.KindGateway:
		return &Object{Kind: translate.KindSubnet, Name: rule.Owner.Name, Rule: "gatewayType"}
	case translate.KindTransit:
		return &Object{Kind: translate.KindVpc, Name: rule.Owner.Name, Rule: "clusterAccess"}
	}
	return &Object{Kind: rule.Owner.Kind, Namespace: rule.Owner.Namespace, Name: rule.Owner.Name}
}

func (w *walk) policyDrops(o *Object, rule *owned[*nb.LogicalRouterPolicy], p packet) {
	if eip := w.s.egressEip(rule.Owner.Name); eip != "" && rule.Owner.Kind == translate.KindEgressAddress {
		w.drop(o, "read its condition Ready, and the events ExternalAddressNotApplied of the pod",
			"%s selects the pod, and no rule for the pod with the addresses of OvnEip %s is applied: packets to %s are dropped", o, eip, p.dst)
		return
	}
	if rule.Owner.Kind == translate.KindEgressAddress {
		w.drop(o, "read its condition Ready, and let nodeSelector select a node that serves", "%s selects the pod, and no node has its addresses: packets to %s are dropped", o, p.dst)
		return
	}
	if rule.Owner.Kind != translate.KindGateway {
		w.drop(o, fmt.Sprintf("change or remove %s of %s, or add a policy that allows this traffic with a priority above %d", o.Rule, o, rule.row.Priority),
			"%s drops the packet: priority %d, match %q", describe(o), rule.row.Priority, rule.row.Match)
		return
	}
	subnet := w.s.subnet(rule.Owner.Name)
	for _, node := range activeNodes(subnet) {
		if _, join := w.s.nodeAddresses(node); len(join) == 0 {
			if w.needs(ResourceRecords, "", "which address gateway node "+node+" has") {
				w.drop(&Object{Kind: "Node", Name: node}, "repair the node, or name another one in gatewayNode of Subnet "+subnet.Name, "gateway node %s has no address on the subnet join", node)
			}
			return
		}
	}
	w.drop(o, "name a node that exists and is ready in gatewayNode or gatewayNodeSelectors of Subnet "+subnet.Name+", or set gatewayType to distributed",
		"Subnet %s has a centralized gateway and no node carries its traffic%s: packets to %s are dropped", subnet.Name, conditionText(subnet, kubeovnv1.ConditionGatewayReady), p.dst)
}

// unreachable reports a next hop that is in no network of the router.
func (w *walk) unreachable(vpc string, way found) {
	w.drop(&Object{Kind: translate.KindVpc, Name: vpc}, "correct the next hop, or create the subnet that contains it", "next hop %s is in no network of the router of Vpc %s", way.hop, vpc)
}

// noRoute reports why a router has no route.
func (w *walk) noRoute(vpc string, p packet) {
	o := &Object{Kind: translate.KindVpc, Name: vpc, Rule: "staticRoutes"}
	if w.s.unread(ResourceVpcs, "") != nil {
		if w.to.kind == aPod && w.to.net.LogicalRouter != vpc {
			w.doubt(nil, "%s is in Vpc %s and %s in Vpc %s: packets pass only over a link of both Vpcs, which cannot be read", w.from, vpc, w.to, w.to.net.LogicalRouter)
			return
		}
		w.needs(ResourceVpcs, "", fmt.Sprintf("which route Vpc %s has to %s", vpc, p.dst))
		return
	}
	if len(w.elsewhere) == 1 {
		w.to = w.elsewhere[0]
	}
	switch {
	case w.to.kind == aPod && w.to.net.LogicalRouter != vpc:
		w.otherVpc(vpc, o)
		return
	case len(w.elsewhere) > 0:
		w.drop(o, w.nameIt(), "Vpc %s has no route to %s", vpc, p.dst)
		return
	case w.unserved(p.dst).IsValid():
		w.drop(o, useAService, "Vpc %s has no route to %s, and no Service has this address", vpc, p.dst)
		return
	}
	if w.unusedRoute(vpc, p) {
		return
	}
	for _, entry := range w.vpcSpec(vpc).StaticRoutes { // a route that OVN ignores
		prefix, err := netip.ParsePrefix(cmp.Or(entry.CIDR, "0.0.0.0/0"))
		if err == nil && prefix.Contains(p.dst) {
			w.drop(o, "correct nextHopIP, or create the subnet or the link that contains it", "the route of Vpc %s to %s has next hop %s, which is in none of its networks",
				vpc, entry.CIDR, entry.NextHopIP)
			return
		}
	}
	if vpc == kubeovnv1.DefaultVpc {
		w.drop(o, "give the subnet join a CIDR of the family "+familyOf(p.dst).String(), "the router of Vpc %s has no route to %s", vpc, p.dst)
		return
	}
	if w.unconnected(vpc, p) {
		return
	}
	access := w.clusterAccess(vpc)
	if access == kubeovnv1.ClusterAccessServices {
		w.drop(&Object{Kind: translate.KindSubnet, Name: w.from.net.LogicalSwitch, Rule: "natOutgoing"}, "set natOutgoing of Subnet "+w.from.net.LogicalSwitch+" to true, or add a route to staticRoutes of Vpc "+vpc,
			"Vpc %s has no route to %s: with clusterAccess Services, only subnets with natOutgoing reach destinations that are no Services", vpc, p.dst)
		return
	}
	w.drop(&Object{Kind: translate.KindVpc, Name: vpc, Rule: "clusterAccess"}, "set clusterAccess of Vpc "+vpc+" to Services, for destinations outside with natOutgoing of the subnet, or add a route to its staticRoutes",
		"Vpc %s has no route to %s: its clusterAccess is %s", vpc, p.dst, access)
}

// otherVpc reports that two pods are in two VPCs without a way between them.
func (w *walk) otherVpc(vpc string, o *Object) {
	remote := w.to.net.LogicalRouter
	if object, why, change := w.link(vpc, remote); object != nil {
		w.drop(object, change, "%s is in Vpc %s and %s in Vpc %s, and their link is not set up: %s", w.from, vpc, w.to, remote, why)
		return
	}
	for _, h := range []host{w.from, w.to} {
		if name, expected := w.misplaced(h); name != "" {
			w.drop(h.object(), fmt.Sprintf("create %s again, so that it gets an address of subnet %s", h, expected),
				"%s is in Vpc %s and %s in Vpc %s. %s existed before its namespace was bound to other subnets (%s): it is still in subnet %s", w.from, vpc, w.to, remote, h, expected, name)
			return
		}
	}
	router, _ := validation.Vpc(vpc, w.vpcSpec(vpc))
	if slices.ContainsFunc(router.Peerings, func(p validation.Peering) bool { return p.Remote == remote }) {
		w.drop(o, fmt.Sprintf("add a route to %s, with the address of Vpc %s on the link as nextHopIP, to staticRoutes of Vpc %s", w.to.addr, remote, vpc),
			"Vpcs %s and %s are linked, but Vpc %s has no route to %s", vpc, remote, vpc, w.to.addr)
		return
	}
	o.Rule = "vpcPeerings"
	w.drop(o, fmt.Sprintf("link Vpcs %s and %s by vpcPeerings and staticRoutes of both, or create one of the pods in a subnet of the other's Vpc", vpc, remote),
		"%s is in Vpc %s and %s in Vpc %s: packets pass only over a link of both Vpcs, and there is none", w.from, vpc, w.to, remote)
}

// misplaced returns the subnet of a pod, and the subnets that serve its namespace, if the pod is in another one although it names none.
func (w *walk) misplaced(h host) (subnet, expected string) {
	if h.pod == nil {
		return "", ""
	}
	ns := w.s.namespace(h.pod.Namespace)
	if ns == nil || len(w.s.Subnets) == 0 || h.net.LogicalSwitch != kubeovnv1.DefaultSubnet {
		return "", ""
	}
	serving := w.serving(ns.Name)
	if len(serving) == 0 || slices.Contains(serving, h.net.LogicalSwitch) {
		return "", ""
	}
	return h.net.LogicalSwitch, strings.Join(serving, ", ")
}

// serving returns the subnets that serve a namespace, as the controllers choose them.
func (w *walk) serving(namespace string) []string {
	ns := w.s.namespace(namespace)
	var listing *kubeovnv1.Vpc
	for i := range w.s.Vpcs {
		v := w.s.vpc(w.s.Vpcs[i].Name)
		if slices.Contains(v.Spec.Namespaces, namespace) && (listing == nil || lookup.Precedes(v, listing)) {
			listing = v
		}
	}
	listed := listing != nil
	if !listed {
		listing = w.s.vpc(kubeovnv1.DefaultVpc)
	}
	var bound []*kubeovnv1.Subnet
	for _, s := range w.s.Subnets {
		bound = append(bound, w.s.subnet(s.Name))
	}
	return lookup.SubnetsOf(ns, bound, listing, listed)
}
