// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/validation"
)

// externalPorts returns the ports of a VPC's router in external subnets that were read.
func (w *walk) externalPorts(vpc string) []translate.ExternalPort {
	of := w.s.vpc(vpc)
	if of == nil {
		return nil
	}
	var ports []translate.ExternalPort
	for _, name := range lookup.ConnectedSubnets(of) {
		subnet := w.s.subnet(name)
		if subnet == nil {
			continue
		}
		network, problem := validation.Subnet(name, &subnet.Spec)
		if problem != nil {
			continue
		}
		ports = append(ports, translate.ExternalPort{
			Subnet: name, CIDRs: network.CIDRs, Gateways: network.Gateways, Addresses: w.portAddresses(vpc, name, network.CIDRs), MAC: anyMAC, Chassis: []string{w.from.node},
		})
	}
	return ports
}

// portAddresses returns the addresses of a router's port in an external subnet, which its OvnEip has. If that cannot be read, the address of the subnet itself stands for
// them: no packet is for it, and its family and prefix are the port's.
func (w *walk) portAddresses(vpc, subnet string, cidrs []netip.Prefix) []netip.Addr {
	for _, eip := range w.s.Eips {
		if addresses := addressesOf(eip); eip.Name == translate.ExternalEip(vpc, subnet) && len(addresses) > 0 {
			return addresses
		}
	}
	addresses := make([]netip.Addr, len(cidrs))
	for i, cidr := range cidrs {
		addresses[i] = cidr.Masked().Addr()
	}
	return addresses
}

func addressesOf(eip *kubeovnv1.OvnEip) []netip.Addr {
	return ipfamily.ValidAddrs(eip.Status.V4IP, eip.Status.V6IP)
}

// externalFamilies returns the families whose default routes lead through external ports.
func externalFamilies(vpc string, ports []translate.ExternalPort) []ipfamily.Family {
	var families []ipfamily.Family
	for _, port := range ports {
		for _, a := range port.Addresses {
			if vpc != kubeovnv1.DefaultVpc && !slices.Contains(families, ipfamily.Of(a)) {
				families = append(families, ipfamily.Of(a))
			}
		}
	}
	return families
}

// addExternal adds the external ports of a VPC's router, and the rules for external addresses.
func (w *walk) addExternal(vpc string, ports []translate.ExternalPort, tables []string, routes []translate.StaticRoute) {
	if len(ports) == 0 {
		return
	}
	in := translate.ExternalInputs{Vpc: vpc, Ports: ports, Default: externalFamilies(vpc, ports), RouteTables: tables, Routes: routes, MonitorGateways: w.vpcSpec(vpc).EnableBfd}
	if vpc != kubeovnv1.DefaultVpc {
		in.Services = w.s.ServiceCIDRs
	}
	rows := translate.External(in)
	w.m.add(translate.ExternalOwner(vpc), w.usedRoutes(vpc, rows))
	var defaults []netip.Addr
	for _, route := range routes {
		if route.Prefix.Bits() == 0 && !route.BySource && route.Table == "" {
			defaults = append(defaults, route.NextHop)
		}
	}
	for _, row := range rows {
		if route, is := row.Model.(*nb.LogicalRouterStaticRoute); is && route.RouteTable == "" && strings.HasSuffix(route.IPPrefix, "/0") {
			defaults = append(defaults, ipfamily.ValidAddrs(route.Nexthop)...)
		}
	}
	for _, rule := range w.s.ExternalRules {
		n, is := natOf(rule)
		if !is || n.in.Vpc != vpc || !n.applied() {
			continue
		}
		n.connect(ports, defaults)
		if n.in.Subnet != "" {
			w.nat[vpc] = append(w.nat[vpc], n)
		}
	}
	for i := range w.nat[vpc] {
		n := &w.nat[vpc][i]
		n.yields(w.nat[vpc], ports)
		n.in.Routed = translate.Routed(vpc, routes)
		w.m.add(translate.OvnNATOwner(n.in.Kind, n.in.Name), translate.OvnNAT(n.in))
	}
}

// sourceRule returns the rule that translates the source of a packet that a VPC's router sends to an external subnet, with the address; nil if there is none. Of two, the
// one with the longer prefix applies, and an OvnFip before both.
func (w *walk) sourceRule(vpc, subnet string, p packet) (best *natRule, external netip.Addr) {
	bits := -1
	for i := range w.nat[vpc] {
		n := &w.nat[vpc][i]
		if n.in.Subnet != subnet {
			continue
		}
		for _, pair := range n.in.Pairs {
			switch {
			case !pair.Internal.Contains(p.src):
			case n.in.Kind == translate.KindOvnDnatRule:
				if w.routesOnly && protocolOf(n.in.Protocol) == p.protocol && n.in.InternalPort == p.source {
					return n, pair.External // the answer of a connection that came by the rule
				}
			case pair.Internal.Bits() > bits || pair.Internal.Bits() == bits && n.in.Kind == translate.KindOvnFip:
				best, external, bits = n, pair.External, pair.Internal.Bits()
			}
		}
	}
	return best, external
}

// leavesExternally follows a packet that the router of a VPC sends out by its port in an external subnet.
func (w *walk) leavesExternally(vpc string, way found, p packet) {
	subnet := strings.TrimPrefix(way.port.Key, "port/")
	if !w.needsRules("which source the packet has outside") {
		return
	}
	rule, external := w.sourceRule(vpc, subnet, p)
	if rule == nil {
		w.leavesUntranslated(vpc, subnet, p)
		return
	}
	w.state(rule)
	w.translated = true
	w.say(Changes, rule.object(), "%s %s gives the packet source %s, and the router of Vpc %s sends it out by external subnet %s", rule.in.Kind, rule.in.Name, external, vpc, subnet)
	p.src = external
	if !w.externalAddress(p) {
		w.deliver("%s is in the physical network of subnet %s or beyond: the network there decides the rest", p.dst, subnet)
	}
}

// leavesUntranslated follows a packet that leaves with the pod's own address.
func (w *walk) leavesUntranslated(vpc, subnet string, p packet) {
	change := fmt.Sprintf("create an OvnSnatRule for %s, or an OvnFip for the pod, with an OvnEip of subnet %s", p.src, subnet)
	o := &Object{Kind: translate.KindVpc, Name: vpc, Rule: "extraExternalSubnets"}
	if w.eipAt(p.dst) >= 0 {
		w.say(Unclear, o, "the packet keeps the pod's address, because no OvnFip or OvnSnatRule is applied for %s%s: answers from another router, or past the router, do not come back to it",
			p.src, w.notApplied(vpc, p.src))
		if w.externalAddress(p); !w.dropped {
			w.unclear, w.decidedBy, w.change = true, o, change
		}
		return
	}
	w.unclear, w.decidedBy = true, o
	w.change = fmt.Sprintf("%s, unless the network outside has a route to %s", change, p.src)
	w.say(Unclear, o, "the router of Vpc %s sends the packet out by external subnet %s with the pod's address, because no OvnFip or OvnSnatRule is applied for %s%s: answers come back only if the network there has a route to it",
		vpc, subnet, p.src, w.notApplied(vpc, p.src))
}

// state notes that the current spec of a rule is not the applied one.
func (w *walk) state(n *natRule) {
	if n.why != "" {
		w.say(Notes, n.object(), "%s %s is not ready: %s", n.in.Kind, n.in.Name, n.why)
	}
}

// notApplied names a rule for a source that is not applied, in parentheses; "" if there is none.
func (w *walk) notApplied(vpc string, source netip.Addr) string {
	for _, o := range w.s.ExternalRules {
		if n, is := natOf(o); is && !n.applied() && n.why != "" && n.asksForSource(vpc, w.from, source) {
			return fmt.Sprintf(" (%s %s is not applied: %s)", n.in.Kind, n.in.Name, n.why)
		}
	}
	return ""
}

// eipAt returns the index of the OvnEip with an address; -1 if there is none.
func (w *walk) eipAt(addr netip.Addr) int {
	return slices.IndexFunc(w.s.Eips, func(e *kubeovnv1.OvnEip) bool { return slices.Contains(addressesOf(e), addr) })
}

// needsRules reports whether OvnEips and their rules were read. It records resources that could not be read.
func (w *walk) needsRules(what string) bool {
	all := w.needs(ResourceEips, "", what)
	for _, kind := range kubeovnv1.NATKinds {
		all = all && w.needs(ResourceOf(kind), "", what)
	}
	return all
}

// externalAddress follows a packet from the physical network to the address of an OvnEip. It reports whether the destination is one, unless nodes serve it.
func (w *walk) externalAddress(p packet) bool {
	i := w.eipAt(p.dst)
	if i < 0 {
		return false
	}
	if w.entered {
		w.doubt(nil, "the packet enters a router a second time, for %s", p.dst)
		return true
	}
	eip := w.s.Eips[i]
	var ports []string
	for _, o := range w.s.ExternalRules {
		n, is := natOf(o)
		if !is || n.in.Kind == translate.KindOvnSnatRule {
			continue
		}
		for _, pair := range n.in.Pairs {
			if pair.External != p.dst || !pair.Internal.IsSingleIP() {
				continue
			}
			if n.forwards(p) {
				w.enters(&n, pair, p)
				return true
			}
			ports = append(ports, fmt.Sprintf("%d/%s", n.in.ExternalPort, n.in.Protocol))
		}
	}
	for _, f := range append(w.routerFronts("", p), w.eipFronts("", p)...) {
		switch {
		case f.noPort:
			ports = append(ports, f.ports)
		case f.vpc == kubeovnv1.DefaultVpc: // nodes serve it
			return false
		default:
			w.balanceOnRouter(&f, eip, p)
			return true
		}
	}
	w.notForwarded(eip, ports, p)
	return true
}

// notForwarded reports a packet from the physical network for an address of an OvnEip that no rule forwards. ports are those of the rules.
func (w *walk) notForwarded(eip *kubeovnv1.OvnEip, ports []string, p packet) {
	if vpc := w.routerWith(eip); vpc != "" && p.protocol == ICMP {
		w.deliver("%s is an address of the router of Vpc %s, which answers", p.dst, vpc)
		return
	}
	for _, o := range w.s.ExternalRules {
		if n, is := natOf(o); is && !n.applied() && n.why != "" && n.eip == eip.Name && n.asksFor(p) {
			w.drop(n.object(), "correct the rule as its condition Ready says", "%s is the address of OvnEip %s, and %s %s is not applied: %s", p.dst, eip.Name, n.in.Kind, n.in.Name, n.why)
			return
		}
	}
	what := "which rules and Services use OvnEip " + eip.Name
	if !w.needsRules(what) || !w.needs(ResourceRouterRule, "", what) || !w.needs(ResourceServices, "", what) {
		return
	}
	for _, s := range w.s.Services {
		c := apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionAddressAssigned)
		if requested, _ := svc.Request(s); svc.ByOvnEip(s) && slices.Contains(requested[:], p.dst) && c != nil && c.Status == metav1.ConditionFalse {
			o := &Object{Kind: "Service", Namespace: s.Namespace, Name: s.Name}
			w.drop(o, "correct the Service as its condition "+kubeovnv1.ConditionAddressAssigned+" says", "%s is the address of OvnEip %s, and %s does not have %s: %s", p.dst, eip.Name, o, portText(p.protocol, p.port), c.Message)
			return
		}
	}
	has := "no rule uses it"
	if len(ports) > 0 {
		has = "its rules have " + strings.Join(ports, ", ")
	}
	w.drop(&Object{Kind: "OvnEip", Name: eip.Name}, fmt.Sprintf("create an OvnFip, an OvnDnatRule or a RouterLBRule with ovnEip %s for %s", eip.Name, portText(p.protocol, p.port)),
		"%s is the address of OvnEip %s, and %s: nothing forwards %s", p.dst, eip.Name, has, portText(p.protocol, p.port))
}

// routerWith returns the VPC whose router's port has the addresses of an OvnEip; "" if there is none.
func (w *walk) routerWith(eip *kubeovnv1.OvnEip) string {
	for _, vpc := range w.s.Vpcs {
		for _, subnet := range lookup.ConnectedSubnets(vpc) {
			if eip.Name == translate.ExternalEip(vpc.Name, subnet) {
				return vpc.Name
			}
		}
	}
	return ""
}

// balanceOnRouter follows a packet from the physical network to the endpoints of a RouterLBRule or a Service of a custom VPC.
func (w *walk) balanceOnRouter(f *front, eip *kubeovnv1.OvnEip, p packet) {
	subnet := lookup.ExternalOfEip(eip)
	vpc := w.s.vpc(f.vpc)
	if vpc == nil && !w.needs(ResourceVpcs, "", "in which external subnets the router of Vpc "+f.vpc+" has ports") {
		return
	}
	if vpc == nil || !slices.Contains(lookup.ConnectedSubnets(vpc), subnet) {
		w.drop(&Object{Kind: translate.KindVpc, Name: f.vpc, Rule: "extraExternalSubnets"}, fmt.Sprintf("add subnet %s to extraExternalSubnets of Vpc %s, and see its condition %s", subnet, f.vpc, kubeovnv1.ConditionExternalReady),
			"%s serves pods of Vpc %s only: its router has no port in external subnet %s", f.object, f.vpc, subnet)
		return
	}
	w.entered = true
	w.balance(f, func(w *walk, e netip.AddrPort) {
		q := p
		q.model, q.dst, q.port = w.m, e.Addr(), e.Port()
		w.fromExternalPort(f.vpc, subnet, q)
	})
}

// enters follows a packet from the physical network that a rule forwards to an address of its VPC.
func (w *walk) enters(n *natRule, pair translate.NATPair, p packet) {
	w.state(n)
	q := p
	q.dst = pair.Internal.Addr()
	if n.in.InternalPort != 0 {
		q.port = n.in.InternalPort
		w.q.Port = q.port
	}
	w.say(Changes, n.object(), "%s %s forwards the packet to %s on the router of Vpc %s", n.in.Kind, n.in.Name, q.dst, n.in.Vpc)
	w.entered, w.elsewhere = true, nil
	w.to = w.s.hostAt(q.dst, n.in.Vpc)
	if w.to.kind == aPod && w.to.net.LogicalRouter != n.in.Vpc { // another VPC has the address, too
		w.to = host{kind: unused, addr: q.dst}
	}
	if w.to.kind != aPod && n.vip != "" {
		w.doubt(&Object{Kind: "Vip", Name: n.vip}, "%s is the address of Vip %s: the pod that has it at the moment gets the packet, and is not known", q.dst, n.vip)
		return
	}
	w.load()
	q.model = w.m
	if w.ready(w.to); w.ended() {
		return
	}
	w.network(n.in.Vpc)
	subnet := ""
	for _, port := range w.externalPorts(n.in.Vpc) {
		if within(port.CIDRs, pair.External) {
			subnet = port.Subnet
		}
	}
	if w.fromExternalPort(n.in.Vpc, subnet, q); w.delivered && w.from.kind == outside && !w.q.Answer {
		w.returns(p.src)
	}
}

// fromExternalPort follows a packet that a VPC's router has got at its port in an external subnet.
func (w *walk) fromExternalPort(vpc, subnet string, p packet) {
	w.network(vpc)
	for _, port := range w.m.ports[translate.RouterRef(vpc)] {
		if port.Ref == translate.ExternalPortRef(vpc, subnet) {
			p.inport = port.row.Name
		}
	}
	p.mac, p.chassis, p.resident = nil, "", ""
	w.route(vpc, p)
}

// returns checks that the answer of a pod to a host outside is not lost.
func (w *walk) returns(to netip.Addr) {
	if w.to.kind != aPod {
		return
	}
	answer := w.fork(w.to, host{kind: outside, addr: to})
	answer.routesOnly, answer.delivered = true, false
	answer.q.SourceAddress, answer.q.SourceMAC = netip.Addr{}, nil
	answer.leaveSwitch(answer.packet())
	if answer.dropped {
		w.drop(answer.decidedBy, answer.change, "the answer of %s is lost: %s", w.to, answer.steps[len(answer.steps)-1].Text)
	}
}

// beyond ends a walk of a packet that leaves the cluster through a node: in the network outside, or at a router that has its destination.
func (w *walk) beyond(node string, p packet, format string, args ...any) {
	if own, _ := w.s.nodeAddresses(node); w.translated && first(own, familyOf(p.dst)).IsValid() {
		p.src = first(own, familyOf(p.dst))
	}
	if !w.externalAddress(p) {
		w.deliver(format, args...)
	}
}

// inPhysical reports whether an address that no pod has is in a subnet of a physical network, where other hosts may have it.
func (w *walk) inPhysical(h host) bool {
	s := w.s.subnet(h.subnet)
	return h.kind == unused && s != nil && s.Spec.PhysicalGateway()
}

// unconnected reports a VPC without a route although it requests ports in external subnets. It reports whether that is the reason.
func (w *walk) unconnected(vpc string, p packet) bool {
	of := w.s.vpc(vpc)
	if of == nil || len(of.Spec.ExternalSubnets()) == 0 {
		return false
	}
	o := &Object{Kind: translate.KindVpc, Name: vpc, Rule: "extraExternalSubnets"}
	connected := lookup.ConnectedSubnets(of)
	for _, name := range connected {
		if w.s.subnet(name) == nil && !w.needs(ResourceSubnets, "", "which addresses external subnet "+name+" has") {
			return true
		}
	}
	missing := slices.DeleteFunc(of.Spec.ExternalSubnets(), func(name string) bool { return slices.Contains(connected, name) })
	if len(missing) == 0 {
		w.drop(o, fmt.Sprintf("give one of these subnets and the OvnEip of the router's port there an %s address, or add a route to staticRoutes of Vpc %s", familyOf(p.dst), vpc),
			"Vpc %s has no route to %s: its router has no %s address in external subnet %s", vpc, p.dst, familyOf(p.dst), strings.Join(connected, ", "))
		return true
	}
	why := "it is not connected yet"
	if c := apimeta.FindStatusCondition(kubeovnv1.ConditionsOf(of), kubeovnv1.ConditionExternalReady); c != nil && c.Status == metav1.ConditionFalse {
		why = c.Message
	}
	w.drop(o, "see condition "+kubeovnv1.ConditionExternalReady+" of Vpc "+vpc, "Vpc %s has no route to %s: its router has no port in external subnet %s (%s)", vpc, p.dst, strings.Join(missing, ", "), why)
	return true
}
