// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/endpoints"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/svc"
)

// fromPod follows a packet of a pod.
func (w *walk) fromPod() {
	p := w.packet()
	name, vpc := w.from.net.LogicalSwitch, w.from.net.LogicalRouter
	w.network(vpc)
	w.say(Notes, w.from.object(), "%s has %s in subnet %s of Vpc %s, on node %s", w.from, w.from.addr, name, vpc, w.from.node)
	w.conditions(name)
	if w.secure(p); w.ended() {
		return
	}
	w.acls(name, sends, p, &w.from)
	if w.ended() {
		return
	}
	if w.from.addr == w.to.addr {
		if w.to.pod != w.from.pod {
			w.drop(&Object{Kind: translate.KindVpc, Name: vpc}, "give one of them an address that the other's Vpc does not have",
				"%s of Vpc %s and %s of Vpc %s have the same address: %s keeps packets to it", w.from, vpc, w.to, w.to.net.LogicalRouter, w.from)
			return
		}
		w.deliver("%s reaches itself", w.from)
		return
	}
	if f := w.served(vpc, p); f != nil && w.balancesIn(name) {
		w.balance(f, func(w *walk, e netip.AddrPort) {
			q := p
			q.model, q.dst, q.port = w.m, e.Addr(), e.Port()
			w.network(vpc)
			if e.Addr() == w.from.addr {
				w.deliver("the Service sends the packet back to %s, which reaches itself", w.from)
				return
			}
			w.sendTo(q)
		})
		return
	}
	w.sendTo(p)
}

// secure checks the source of a packet by the port's security.
func (w *walk) secure(p packet) {
	if p.src == w.from.addr && slices.Equal(p.mac, w.from.net.MAC) {
		return
	}
	own := w.m.secured[p.inport]
	o := w.from.object()
	switch {
	case len(own) == 0:
		w.say(Notes, o, "the port of %s has no port security: it may send from %s", w.from, p.src)
	case slices.Contains(own, p.src.String()) && own[0] == p.mac.String():
	case len(kubeovnv1.ParseAAPs(w.from.pod.Annotations)) > 0:
		w.doubt(o, "the port of %s has port security: whether one of the Vips that it shares has %s is not read", w.from, p.src)
	default:
		o.Rule = "port security"
		w.drop(o, fmt.Sprintf("send from %s, share the address by a Vip (annotation aaps), or end port security by annotation port_security of the pod and portSecurity of its Subnet",
			strings.Join(own, " ")), "the port of %s has port security: it sends from %s only, and the packet has source %s %s", w.from, strings.Join(own, " "), p.mac, p.src)
	}
}

// balancesIn reports whether OVN's load balancers serve the ports of a subnet.
func (w *walk) balancesIn(subnet string) bool {
	s := w.s.subnet(subnet)
	return s == nil || k8s.ServesServices(s)
}

// sendTo evaluates the policies of the sending pod for the final destination, and follows the packet further.
func (w *walk) sendTo(p packet) {
	w.acls(w.from.net.LogicalSwitch, sendsTo, p, &w.from)
	if !w.ended() {
		w.leaveSwitch(p)
	}
}

// fromNodeItself follows a packet of a process on a node.
func (w *walk) fromNodeItself() {
	p := w.packet()
	w.say(Notes, w.from.object(), "%s has %s", w.from, w.from.addr)
	if w.nodeService(w.from.node, p) || w.externalAddress(p) {
		return
	}
	w.fromJoin(w.from.node, p)
}

// fromJoin follows a packet that a node sends to a pod by its port on the subnet join.
func (w *walk) fromJoin(node string, p packet) {
	switch {
	case w.to.kind == aNode:
		w.deliver("the packet reaches %s by the network of the nodes, which Kiln does not filter", w.to)
		return
	case w.to.kind == outside && w.rejected(node, p):
		return
	case w.to.kind == outside || w.inPhysical(w.to):
		w.deliver("%s is outside of the cluster: the packet leaves by the node's own network, which Kiln does not filter", p.dst)
		return
	case w.to.kind == aPod && w.to.net.LogicalRouter != kubeovnv1.DefaultVpc:
		w.drop(&Object{Kind: translate.KindVpc, Name: w.to.net.LogicalRouter}, "probes of the kubelet work; for other connections move the pod to a subnet of Vpc "+kubeovnv1.DefaultVpc,
			"%s is in Vpc %s: nodes reach pods of custom VPCs only at the ports of probes", w.to, w.to.net.LogicalRouter)
		return
	case w.to.kind == aPod && w.to.net.ProviderNetwork != "" && !w.onRouter(w.to.net.LogicalSwitch):
		w.arriveUnderlay(p)
		return
	}
	w.network(kubeovnv1.DefaultVpc)
	_, join := w.s.nodeAddresses(node)
	if p.src == w.from.addr && w.from.kind == aNode { // the source of a route through ovn0
		if a := first(join, familyOf(p.dst)); a.IsValid() {
			p.src = a
			w.say(Changes, nil, "node %s sends it by ovn0, with %s as its source", node, a)
		}
	}
	p.inport, _ = w.portsOf(kubeovnv1.DefaultVpc, kubeovnv1.JoinSubnet)
	p.chassis, p.resident = node, ""
	if p.inport == "" && w.s.unread(ResourceSubnets, "") == nil {
		w.drop(&Object{Kind: translate.KindSubnet, Name: kubeovnv1.JoinSubnet}, "repair Subnet join", "subnet join does not exist or is not valid: nodes have no way to pods")
		return
	}
	w.route(kubeovnv1.DefaultVpc, p)
}

// arriveUnderlay delivers a packet to a pod of an underlay subnet, whose gateway is a router of the physical network.
func (w *walk) arriveUnderlay(p packet) {
	w.doubt(nil, "the packet goes through the physical network to subnet %s: its routers and filters are not known", w.to.net.LogicalSwitch)
	w.network(w.to.net.LogicalRouter)
	p.outport, p.chassis, p.resident = w.to.port(), w.to.node, w.to.port()
	w.acls(w.to.net.LogicalSwitch, receives, p, &w.to)
}

// fromOutside follows a packet of a host outside of the cluster.
func (w *walk) fromOutside() {
	p := w.packet()
	switch {
	case w.inPhysical(w.from):
		w.say(Notes, nil, "%s is in the physical network of subnet %s", w.from, w.from.subnet)
		w.from.kind = outside
	case w.from.kind != outside:
		w.doubt(nil, "the owner of %s is not known", w.from.addr)
		return
	default:
		w.say(Notes, nil, "%s is outside of the cluster", w.from)
	}
	if w.externalAddress(p) {
		return
	}
	if w.to.kind == aPod && w.to.net.ProviderNetwork != "" {
		w.arriveUnderlay(p)
		return
	}
	node := w.to.node
	if w.to.kind != aNode {
		node = ""
	}
	if w.nodeService(node, p) || w.ended() {
		return
	}
	switch w.to.kind {
	case aNode:
		w.deliver("the packet reaches node %s: its own firewall and processes decide the rest", w.to.node)
	case aPod:
		w.doubt(nil, "%s has an address of the overlay: packets from outside reach it only if the network there has a route to it through a node", w.to)
		w.fromJoin(w.to.node, p)
	case outside, hidden, unused:
		if !w.rejected("", p) {
			w.doubt(nil, "%s is no address of a node, a pod or a Service that can be read", p.dst)
		}
	}
}

// nodeService follows a packet that a node translates: to a node port, or to an address of a Service. It reports whether the node does. node is empty if
// any node may get the packet.
func (w *walk) nodeService(node string, p packet) bool {
	service, port, nodePort := w.nodeFront(p)
	if service == nil {
		return false
	}
	o := Object{Kind: "Service", Namespace: service.Namespace, Name: service.Name}
	if vpc := svc.Vpc(service); vpc != kubeovnv1.DefaultVpc {
		w.drop(&o, "move the Service's pods to the default VPC, or connect from a pod of Vpc "+vpc, "%s is of Vpc %s: nodes do not serve it", o, vpc)
		return true
	}
	external := w.from.kind == outside
	lb := slices.Contains(svc.LoadBalancerAddresses(service), p.dst)
	if lb && len(service.Spec.LoadBalancerSourceRanges) > 0 && !inRanges(service.Spec.LoadBalancerSourceRanges, p.src) {
		o.Rule = "loadBalancerSourceRanges"
		w.drop(&o, fmt.Sprintf("add %s to loadBalancerSourceRanges of %s", p.src, o), "%s accepts clients of loadBalancerSourceRanges only, and %s is none of them", o, p.src)
		return true
	}
	f := &front{object: o, service: service, namespace: service.Namespace}
	local := nodePort || lb || slices.Contains(service.Spec.ExternalIPs, p.dst.String())
	local = local && service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && (external || nodePort)
	if !local && slices.Contains(svc.ClusterIPs(service), p.dst) {
		local = translate.Local(service)
	}
	f.backends = w.backends(service, port, p, local, node)
	if local && len(f.backends) == 0 && len(w.backends(service, port, p, false, node)) > 0 && node != "" {
		o.Rule = map[bool]string{true: "externalTrafficPolicy", false: "internalTrafficPolicy"}[external || nodePort]
		w.drop(&o, fmt.Sprintf("run a pod of the Service on node %s, use another node, or set %s to Cluster", node, o.Rule),
			"%s has %s Local, and no endpoint on node %s", o, o.Rule, node)
		return true
	}
	w.balance(f, func(w *walk, e netip.AddrPort) {
		q := p
		q.model, q.dst, q.port = w.m, e.Addr(), e.Port()
		at := node
		if at == "" {
			at = w.to.node
		}
		if !local || !external {
			_, join := w.s.nodeAddresses(at)
			if a := first(join, familyOf(q.dst)); a.IsValid() {
				q.src = a
				w.say(Changes, nil, "node %s sends it to endpoint %s with its own address %s", at, e, a)
			}
		}
		w.fromJoin(at, q)
	})
	return true
}

func inRanges(ranges []string, addr netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(text string) bool {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		return err == nil && p.Contains(addr)
	})
}

// nodeFront returns the Service that nodes serve at a packet's destination, and its port.
func (w *walk) nodeFront(p packet) (service *corev1.Service, port corev1.ServicePort, nodePort bool) {
	_, onNode := map[kind]bool{aNode: true}[w.to.kind]
	for _, s := range w.s.Services {
		at := slices.Contains(svc.Addresses(s), p.dst)
		for _, candidate := range s.Spec.Ports {
			if protocolOf(candidate.Protocol) != p.protocol {
				continue
			}
			switch {
			case onNode && candidate.NodePort != 0 && uint16(candidate.NodePort) == p.port: //nolint:gosec // the API server takes 1 to 65535
				return s, candidate, true
			case at && uint16(candidate.Port) == p.port: //nolint:gosec // the API server takes 1 to 65535
				return s, candidate, false
			}
		}
	}
	return nil, corev1.ServicePort{}, false
}

func protocolOf(p corev1.Protocol) string {
	return map[corev1.Protocol]string{"": TCP, corev1.ProtocolTCP: TCP, corev1.ProtocolUDP: UDP, corev1.ProtocolSCTP: SCTP}[p]
}

// backends returns the endpoints of a port of a Service, with local those on a node only.
func (w *walk) backends(service *corev1.Service, port corev1.ServicePort, p packet, local bool, node string) []netip.AddrPort {
	family := discoveryv1.AddressTypeIPv6
	if p.dst.Is4() {
		family = discoveryv1.AddressTypeIPv4
	}
	byState := map[endpoints.State][]netip.AddrPort{}
	for _, at := range endpoints.ByPort(w.s.slicesOf(service.Namespace, service.Name))[endpoints.KeyOf(port.Name, port.Protocol, family)] {
		for i := range at.Slice.Endpoints {
			e := &at.Slice.Endpoints[i]
			addr, err := netip.ParseAddr(endpoints.AddressOf(e))
			if err != nil || local && node != "" && (e.NodeName == nil || *e.NodeName != node) {
				continue
			}
			byState[endpoints.StateOf(e)] = append(byState[endpoints.StateOf(e)], netip.AddrPortFrom(addr, at.Number))
		}
	}
	list := byState[endpoints.Ready]
	if len(list) == 0 {
		list = byState[endpoints.Draining]
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}
