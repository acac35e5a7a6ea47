// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/svc"
)

// source returns the host that sends. An address that several hosts have needs a name: VPCs may have the same addresses.
func (s *Snapshot) source(e End, family ipfamily.Family) (host, *problem) {
	addr := first(e.Addrs(), family)
	owners := s.podsAt(addr)
	if node := s.nodeWith(addr); node != "" {
		owners = append(slices.Clip(owners), host{kind: aNode, addr: addr, node: node})
	}
	if len(owners) > 1 {
		step := Step{Unclear, nil, fmt.Sprintf("it is not known which host sends: %s is the address of %s", addr, candidates(owners))}
		return host{}, &problem{step, CannotTell, "write the name of one of them as A instead of the address: " + names(owners)}
	}
	return s.host(e, family, "")
}

// missing is the problem of an end that does not exist. A wrong name is not the network's fault: the verdict is not Dropped.
func (s *Snapshot) missing(o Object, resource, plural string) *problem {
	if u := s.unread(resource, o.Namespace); u != nil {
		return &problem{Step{Unclear, &o, fmt.Sprintf("%s cannot be read: %s is not permitted", o, u)}, CannotTell, ""}
	}
	list := "kubectl get " + plural
	if o.Namespace != "" {
		list += " -n " + o.Namespace
		if s.namespace(o.Namespace) == nil && s.unread(ResourceNamespaces, o.Namespace) == nil {
			o, list = Object{Kind: "Namespace", Name: o.Namespace}, "kubectl get namespaces"
		}
	}
	return &problem{Step{Unclear, &o, o.String() + " does not exist"}, CannotTell, fmt.Sprintf("correct the name: `%s` lists them", list)}
}

// named reports whether the query has the address of the destination.
func (w *walk) named() bool { return slices.Contains(w.q.To.Addrs(), w.to.addr) }

// introduce notes that no host that the sender reaches has the destination, as far as the API knows.
func (w *walk) introduce() {
	if len(w.elsewhere) > 0 {
		w.say(Notes, nil, "no host of Vpc %s has %s, which is the address of %s", cmp.Or(w.from.net.LogicalRouter, kubeovnv1.DefaultVpc), w.to.addr, candidates(w.elsewhere))
	}
	if cidr := w.unserved(w.to.addr); cidr.IsValid() {
		w.say(Notes, nil, "no Service has %s, which is in %s, a CIDR of Services", w.to.addr, cidr)
	}
	if w.to.kind == outside && w.named() {
		for _, resource := range []string{ResourceServices, ResourceSwitchRule, ResourceRouterRule} {
			w.needs(resource, "", "whether one of "+resource+" has "+w.to.addr.String())
		}
	}
}

// conclude corrects the verdict about such a destination.
func (w *walk) conclude() {
	switch {
	case w.dropped:
		return
	case len(w.elsewhere) > 0:
		w.change = w.nameIt()
	case w.unserved(w.to.addr).IsValid():
		w.change = useAService
	default:
		return
	}
	w.unclear = true
	w.say(Unclear, nil, "it is not known whether another host answers for %s", w.to.addr)
}

// nameIt is the change for an address that pods of other VPCs have.
func (w *walk) nameIt() string {
	return "to ask for a pod of another Vpc, write its name as B instead of the address: " + names(w.elsewhere)
}

// useAService is the change for an address of Services that no Service has.
const useAService = "use the address of a Service: `kubectl get services -A` lists them"

// resolveIn resolves the destination in a linked VPC, if the sender's VPC has no host with it.
func (w *walk) resolveIn(vpc string) {
	if len(w.elsewhere) == 0 {
		return
	}
	if h := w.s.hostAt(w.to.addr, vpc); h.kind == aPod && h.net.LogicalRouter == vpc {
		w.to, w.elsewhere = h, nil
		w.addVague(h)
		w.ready(h)
	}
}

// unserved returns the CIDR of Services with an address that nothing serves; it is not valid if something does, if that is not known, or for other addresses.
func (w *walk) unserved(addr netip.Addr) netip.Prefix {
	served := slices.ContainsFunc(w.s.Services, func(s *corev1.Service) bool { return slices.Contains(svc.Addresses(s), addr) }) ||
		slices.ContainsFunc(w.s.SwitchRules, func(r *kubeovnv1.SwitchLBRule) bool { return slices.Contains(vipsOf(r), addr) }) || w.eipAt(addr) >= 0
	if w.to.kind != outside || served || w.s.unread(ResourceServices, "") != nil {
		return netip.Prefix{}
	}
	for _, cidr := range w.s.ServiceCIDRs {
		if cidr.Contains(addr) {
			return cidr
		}
	}
	return netip.Prefix{}
}

// rejected reports whether a node ends a packet that it does not translate: to an address of Services that none has, or to a port that its Service does not have. node is
// empty for any node.
func (w *walk) rejected(node string, p packet) bool {
	for _, service := range w.s.Services {
		if !slices.Contains(svc.Addresses(service), p.dst) {
			continue
		}
		f := front{object: Object{Kind: "Service", Namespace: service.Namespace, Name: service.Name}, service: service, noPort: true}
		var ports []string
		for _, port := range service.Spec.Ports {
			ports = append(ports, fmt.Sprintf("%d/%s", port.Port, cmp.Or(port.Protocol, corev1.ProtocolTCP)))
		}
		f.ports = strings.Join(ports, ", ")
		if slices.Contains(svc.ClusterIPs(service), p.dst) {
			w.balance(&f, nil)
			return true
		}
		w.doubt(&f.object, "%s has %s, but no %s: its ports are %s", f.object, p.dst, portText(p.protocol, p.port), f.ports)
	}
	if !w.unserved(p.dst).IsValid() {
		return false
	}
	at := "the node that gets the packet"
	if node != "" {
		at = "node " + node
	}
	if w.s.Cluster != nil && w.s.Cluster.Spec.Services.NodeAccess == v1alpha1.NodeAccessKiln {
		w.drop(nil, useAService, "%s rejects the packet: no Service has %s", at, p.dst)
	} else {
		w.drop(nil, useAService, "%s finds no Service with %s: the packet is rejected there, or leaves by the node's own routes, and no host answers", at, p.dst)
	}
	return true
}
