// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// port is the state of a pod's port that may be announced.
type port struct {
	value kubeovnv1.Announcement
	set   bool
	err   error
	// here is true if the pod is on this node.
	here           bool
	addresses      []netip.Addr
	subnet, router string
	created        time.Time
}

// SetPod updates the port of a pod. Pods of other nodes without the annotation are not kept.
func (t *Table) SetPod(p *corev1.Pod) {
	t.setPort(ownerOfPort(types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, kubeovnv1.ProviderOVN), portOf(p, kubeovnv1.ProviderOVN, t.node))
}

// DeletePod removes the port of a pod.
func (t *Table) DeletePod(key types.NamespacedName) {
	t.setPort(ownerOfPort(key, kubeovnv1.ProviderOVN), nil)
}

func ownerOfPort(pod types.NamespacedName, provider string) Owner {
	if provider == kubeovnv1.ProviderOVN {
		provider = ""
	}
	return Owner{kubeovnv1.OnPod, pod, provider}
}

// setPort updates one port; next is nil if it is not kept.
func (t *Table) setPort(owner Owner, next *port) {
	if before := t.ports[owner]; before != nil && (next == nil || before.subnet != next.subnet) {
		t.leave(owner, before.subnet)
	}
	if next == nil {
		delete(t.ports, owner)
	} else {
		t.ports[owner] = next
		if t.members[next.subnet] == nil {
			t.members[next.subnet] = map[Owner]bool{}
		}
		t.members[next.subnet][owner] = true
	}
	t.offerPort(owner)
}

func (t *Table) leave(owner Owner, subnet string) {
	delete(t.members[subnet], owner)
	if len(t.members[subnet]) == 0 {
		delete(t.members, subnet)
	}
}

// portOf returns the state of a pod's port on the network of a provider; nil if no node announces it: the pod has ended, has no such network of Kiln, or is an
// ordinary pod of another node. A pod that terminates still serves until its containers have ended.
func portOf(p *corev1.Pod, provider, node string) *port {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	s := &port{here: p.Spec.NodeName == node, created: p.CreationTimestamp.Time}
	s.value, s.set, s.err = announcement(p.Annotations)
	if !s.here && !s.set {
		return nil
	}
	network, err := kubeovnv1.ParsePodNetworkOf(p.Annotations, provider)
	if err != nil || !network.IsFor(p.UID) {
		return nil
	}
	s.addresses, s.subnet = network.Addresses, network.LogicalSwitch
	s.router = cmp.Or(network.LogicalRouter, kubeovnv1.DefaultVpc)
	return s
}

// offerPort computes the prefixes of a pod's port. The pod's own annotation takes precedence over the annotation of the port's subnet.
func (t *Table) offerPort(owner Owner) {
	p := t.ports[owner]
	if p == nil {
		t.limit(owner, time.Time{}, 0)
		t.offer(owner, offer{})
		return
	}
	of := t.subnets[p.subnet]
	within := t.limit(owner, p.created, t.requestedBy(p, owner.Namespace, of))
	value := kubeovnv1.AnnounceNone
	if of != nil && of.value == kubeovnv1.AnnounceLocal {
		value = of.value
	}
	if p.set {
		switch {
		case p.err != nil:
			t.offer(owner, refuse(fmt.Sprintf("annotation %s %v", kubeovnv1.AnnotationBGP.Key(), p.err)))
			return
		case p.value != kubeovnv1.AnnounceNone && !t.permits(owner.Namespace) && (of == nil || of.value == kubeovnv1.AnnounceNone):
			t.offer(owner, refuse(notPermitted(owner.Namespace)+", or annotate its Subnet"))
			return
		}
		value = p.value
	}
	switch {
	case value == kubeovnv1.AnnounceNone || value == kubeovnv1.AnnounceLocal && !p.here:
		t.offer(owner, offer{})
	case p.router != kubeovnv1.DefaultVpc:
		t.offer(owner, refuse(otherVpc(p.router)))
	case of == nil: // SetSubnet calls this function again
		t.offer(owner, offer{})
	case of.vpc != kubeovnv1.DefaultVpc:
		t.offer(owner, refuse(otherVpc(of.vpc)))
	case of.vlan:
		t.offer(owner, refuse(underlay))
	case !within:
		t.offer(owner, t.beyond(owner.Namespace))
	default:
		prefixes, refused := of.podPrefixes(p.subnet, p.addresses)
		if value == kubeovnv1.AnnounceCluster {
			t.offer(owner, offer{shared: prefixes, refused: refused})
		} else {
			t.offer(owner, offer{own: prefixes, refused: refused})
		}
	}
}

// requestedBy returns how many prefixes the annotation of a pod requests for a port. It is the same on all nodes.
func (t *Table) requestedBy(p *port, namespace string, of *subnet) int {
	if !p.set || p.err != nil || p.value == kubeovnv1.AnnounceNone || p.router != kubeovnv1.DefaultVpc || of == nil ||
		!t.permits(namespace) && of.value == kubeovnv1.AnnounceNone {
		return 0
	}
	return len(hosts(p.addresses))
}

// podPrefixes returns the prefixes of a port's addresses. It refuses addresses that the subnet does not assign to pods: the annotations of a pod are not
// proof that it has them.
func (s *subnet) podPrefixes(name string, addresses []netip.Addr) (prefixes []netip.Prefix, refused string) {
	for _, prefix := range hosts(addresses) {
		switch a := prefix.Addr(); {
		case !contains(s.cidrs, a):
			refused = cmp.Or(refused, fmt.Sprintf("%s is not in the CIDRs of Subnet %s", a, name))
		case slices.Contains(s.gateways, a):
			refused = cmp.Or(refused, fmt.Sprintf("%s is the gateway of Subnet %s", a, name))
		default:
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes, refused
}

func contains(cidrs []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) })
}

// Reasons of refused annotations.
const underlay = "the subnet is connected to a network outside, which has its routes"

func notPermitted(namespace string) string {
	return fmt.Sprintf("spec.speaker.namespaces of the OVNCluster does not contain %s: add it", namespace)
}

func otherVpc(vpc string) string {
	return fmt.Sprintf("it is in VPC %s: only nodes' own VPC %s can be reached from outside through nodes", vpc, kubeovnv1.DefaultVpc)
}

// hosts returns the prefixes of single addresses that can be announced.
func hosts(addresses []netip.Addr) []netip.Prefix {
	prefixes := make([]netip.Prefix, 0, len(addresses))
	for _, a := range addresses {
		if a.IsGlobalUnicast() {
			prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return prefixes
}

// subnet is the state of a Subnet.
type subnet struct {
	value kubeovnv1.Announcement
	err   error
	vpc   string
	vlan  bool
	valid bool
	// cidrs and gateways are empty while the spec has none that are valid.
	cidrs    []netip.Prefix
	gateways []netip.Addr
	// claimed are the CIDRs in the default VPC that the controller found valid: external addresses of Services are not in them.
	claimed []netip.Prefix
}

// SetSubnet updates a Subnet.
func (t *Table) SetSubnet(s *kubeovnv1.Subnet) {
	spec := &k8s.Applied(s).Spec
	next := &subnet{vpc: cmp.Or(spec.Vpc, kubeovnv1.DefaultVpc), vlan: spec.Vlan != ""}
	next.value, _, next.err = announcement(s.Annotations)
	// A valid spec, and not Ready, which is False while a database does not answer: the network of running pods works meanwhile.
	next.valid = s.DeletionTimestamp.IsZero() && k8s.ValidSpec(s) != nil
	if cidrs, err := ipfamily.ParseCIDRs(spec.CIDRBlock); err == nil {
		next.cidrs = cidrs
	}
	if gateways, err := ipfamily.ParseAddrs(spec.Gateway); err == nil {
		next.gateways = gateways
	}
	if k8s.ValidSpec(s) != nil && next.vpc == kubeovnv1.DefaultVpc {
		next.claimed = next.cidrs
	}
	before := t.subnets[s.Name]
	t.subnets[s.Name] = next
	t.offerSubnet(s.Name)
	if before == nil || before.value != next.value || before.vlan != next.vlan || before.vpc != next.vpc ||
		!slices.Equal(before.cidrs, next.cidrs) || !slices.Equal(before.gateways, next.gateways) {
		t.offerMembers(s.Name)
	}
	if before == nil || !slices.Equal(before.claimed, next.claimed) {
		t.offerServices()
	}
}

// DeleteSubnet removes a Subnet.
func (t *Table) DeleteSubnet(name string) {
	delete(t.subnets, name)
	t.offerSubnet(name)
	t.offerMembers(name)
	t.offerServices()
}

func (t *Table) offerMembers(subnet string) {
	for owner := range t.members[subnet] {
		t.offerPort(owner)
	}
}

// offerSubnet computes the prefixes of a Subnet: its CIDRs with AnnounceCluster. With AnnounceLocal its pods have prefixes of their own.
func (t *Table) offerSubnet(name string) {
	owner := Owner{Kind: kubeovnv1.OnSubnet, NamespacedName: types.NamespacedName{Name: name}}
	s := t.subnets[name]
	switch {
	case s == nil || s.err == nil && s.value == kubeovnv1.AnnounceNone:
		t.offer(owner, offer{})
	case s.err != nil:
		t.offer(owner, refuse(fmt.Sprintf("annotation %s %v", kubeovnv1.AnnotationBGP.Key(), s.err)))
	case s.vpc != kubeovnv1.DefaultVpc:
		t.offer(owner, refuse(otherVpc(s.vpc)))
	case s.vlan:
		t.offer(owner, refuse(underlay))
	case s.value == kubeovnv1.AnnounceLocal:
		t.offer(owner, offer{})
	case !s.valid:
		t.offer(owner, refuse("the Subnet is deleted, or no spec of it was valid yet"))
	default:
		t.offer(owner, offer{shared: s.cidrs})
	}
}
