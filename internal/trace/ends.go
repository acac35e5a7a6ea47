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
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
)

// kind is the kind of the owner of an address.
type kind int

const (
	aPod kind = iota
	aNode
	// outside is a host that is not of the cluster.
	outside
	// hidden is an address of the cluster whose owner the user may not read.
	hidden
	// unused is an address of a subnet that no pod has.
	unused
)

// host is one end of a connection with one address.
type host struct {
	kind kind
	addr netip.Addr
	// pod is nil unless the host is a pod. It may be a pod on the host network: kind is then aNode.
	pod  *corev1.Pod
	net  kubeovnv1.PodNetwork
	node string
	// subnet that has the address, for hidden and unused.
	subnet string
}

// String names the host in a sentence.
func (h host) String() string {
	switch {
	case h.pod != nil && h.kind == aNode:
		return fmt.Sprintf("pod %s/%s on the network of node %s", h.pod.Namespace, h.pod.Name, h.node)
	case h.pod != nil:
		return "pod " + h.pod.Namespace + "/" + h.pod.Name
	case h.kind == aNode:
		return "node " + h.node
	}
	return h.addr.String()
}

func (h host) object() *Object {
	switch {
	case h.pod != nil:
		return &Object{Kind: "Pod", Namespace: h.pod.Namespace, Name: h.pod.Name}
	case h.kind == aNode:
		return &Object{Kind: "Node", Name: h.node}
	}
	return nil
}

// port is the name of the pod's logical switch port.
func (h host) port() string {
	if h.kind == aNode {
		return kubeovnv1.NodePortName(h.node)
	}
	return kubeovnv1.PortOf(h.pod, kubeovnv1.ProviderOVN).Name
}

func (s *Snapshot) pod(key types.NamespacedName) *corev1.Pod {
	for _, p := range s.Pods {
		if p.Namespace == key.Namespace && p.Name == key.Name {
			return p
		}
	}
	return nil
}

func (s *Snapshot) node(name string) *corev1.Node {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

func (s *Snapshot) namespace(name string) *corev1.Namespace {
	for _, n := range s.Namespaces {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// subnet returns a Subnet with its applied spec.
func (s *Snapshot) subnet(name string) *kubeovnv1.Subnet {
	for _, subnet := range s.Subnets {
		if subnet.Name == name {
			return k8s.Applied(subnet)
		}
	}
	return nil
}

// vpc returns a Vpc with its applied spec.
func (s *Snapshot) vpc(name string) *kubeovnv1.Vpc {
	for _, v := range s.Vpcs {
		if v.Name == name {
			return k8s.AppliedVpc(v)
		}
	}
	return nil
}

// nodeAddresses returns the node's own addresses, and the addresses of its port on the subnet join.
func (s *Snapshot) nodeAddresses(name string) (own, join []netip.Addr) {
	for _, record := range s.Records {
		if k8s.NodeOf(record) == name {
			return k8s.AddressesOfNode(record), ipfamily.ValidAddrs(strings.Split(record.Spec.IPAddress, ",")...)
		}
	}
	if node := s.node(name); node != nil {
		network, err := kubeovnv1.ParsePodNetwork(node.Annotations)
		if err == nil {
			join = network.Addresses
		}
		return k8s.InternalIPs(node), join
	}
	return nil, nil
}

// nodeWith returns the name of the node with an address, its own or the one on the subnet join; "" if there is none.
func (s *Snapshot) nodeWith(addr netip.Addr) string {
	var names []string
	for _, record := range s.Records {
		names = append(names, k8s.NodeOf(record))
	}
	for _, node := range s.Nodes {
		names = append(names, node.Name)
	}
	for _, name := range names {
		if own, join := s.nodeAddresses(name); slices.Contains(own, addr) || slices.Contains(join, addr) {
			return name
		}
	}
	return ""
}

// nodeProblem says why a node does not forward packets; "" if it does as far as the API knows.
func (s *Snapshot) nodeProblem(name string) string {
	node := s.node(name)
	switch {
	case node == nil && s.unread(ResourceNodes, "") != nil:
		return ""
	case node == nil:
		return fmt.Sprintf("node %s does not exist", name)
	case gateway.StateOf(node, gateway.NoLease) != gateway.Down:
		return ""
	case !gateway.HasNetwork(node):
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable {
				return fmt.Sprintf("node %s has no network: %s", name, c.Message)
			}
		}
	}
	return fmt.Sprintf("node %s is not ready", name)
}

// podHost returns a pod with its address of a family; problem says why it has none.
func (s *Snapshot) podHost(pod *corev1.Pod, family ipfamily.Family) (h host, problem, change string) {
	h = host{kind: aPod, pod: pod, node: pod.Spec.NodeName}
	name := "pod " + pod.Namespace + "/" + pod.Name
	if pod.Spec.HostNetwork {
		h.kind = aNode
		for _, ip := range pod.Status.HostIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil && familyOf(a) == family {
				h.addr = a
			}
		}
		if own, _ := s.nodeAddresses(h.node); !h.addr.IsValid() {
			h.addr = first(own, family)
		}
		if !h.addr.IsValid() {
			return h, fmt.Sprintf("node %s of %s has no %s address", h.node, name, family), "use an address of the other family"
		}
		return h, "", ""
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return h, name + " has finished, and its address is free", "create the pod again"
	}
	if !kubeovnv1.IsPublished(pod) {
		if pod.Spec.NodeName == "" {
			return h, name + " is on no node yet, so it has no address", "find out by its events why the scheduler has not placed it"
		}
		return h, name + " has no address yet", "its events with the reason AcquireAddressFailed have the cause"
	}
	var err error
	if h.net, err = kubeovnv1.ParsePodNetwork(pod.Annotations); err != nil {
		return h, fmt.Sprintf("%s: %v", name, err), "create the pod again"
	}
	if h.addr = first(h.net.Addresses, family); !h.addr.IsValid() {
		return h, fmt.Sprintf("%s has no %s address: its addresses are %s", name, family, ipfamily.Join(h.net.Addresses)),
			"give its subnet a CIDR of that family and create the pod again, or use the other family"
	}
	return h, "", ""
}

func first(addrs []netip.Addr, family ipfamily.Family) netip.Addr {
	for _, a := range addrs {
		if familyOf(a) == family {
			return a
		}
	}
	return netip.Addr{}
}

// podsByAddress returns the pods with an interface in a subnet by their addresses. Pods of several VPCs may have the same address.
func (s *Snapshot) podsByAddress() map[netip.Addr][]host {
	owners := map[netip.Addr][]host{}
	for _, pod := range s.Pods {
		if pod.Spec.HostNetwork {
			continue
		}
		for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			if h, problem, _ := s.podHost(pod, family); problem == "" {
				owners[h.addr] = append(owners[h.addr], h)
			}
		}
	}
	for _, hosts := range owners {
		slices.SortFunc(hosts, func(a, b host) int { // with addresses of physical networks first
			return cmp.Or(strings.Compare(b.net.ProviderNetwork, a.net.ProviderNetwork), strings.Compare(a.String(), b.String()))
		})
	}
	return owners
}

func (s *Snapshot) podsAt(addr netip.Addr) []host {
	if s.owners == nil {
		return s.podsByAddress()[addr]
	}
	return s.owners[addr]
}

// overlay reports whether the host is a pod whose address only its VPC knows.
func (h host) overlay() bool { return h.kind == aPod && h.net.ProviderNetwork == "" }

// candidates describes hosts with one address.
func candidates(hosts []host) string {
	texts := make([]string, 0, len(hosts))
	for _, h := range hosts {
		text := h.String()
		if h.kind == aPod {
			text += " of Vpc " + h.net.LogicalRouter
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// names are hosts as arguments of a query.
func names(hosts []host) string {
	texts := make([]string, 0, len(hosts))
	for _, h := range hosts {
		if h.kind == aNode {
			texts = append(texts, "node//"+h.node)
			continue
		}
		texts = append(texts, h.pod.Namespace+"/"+h.pod.Name)
	}
	return strings.Join(texts, ", ")
}

// hostAt returns the owner of an address, for a sender in a VPC: the same address may exist in several VPCs. Senders outside of VPCs reach the default VPC.
func (s *Snapshot) hostAt(addr netip.Addr, vpc string) host {
	pods := s.podsAt(addr)
	for _, h := range pods {
		if h.net.LogicalRouter == cmp.Or(vpc, kubeovnv1.DefaultVpc) {
			return h
		}
	}
	if name := s.nodeWith(addr); name != "" {
		return host{kind: aNode, addr: addr, node: name}
	}
	if vpc == "" && len(pods) > 0 {
		return pods[0]
	}
	for _, subnet := range s.Subnets {
		applied := k8s.Applied(subnet)
		if !contains(applied, addr) || vpc != "" && vpcOf(applied) != vpc {
			continue
		}
		if s.unread(ResourcePods, "") != nil {
			return host{kind: hidden, addr: addr, subnet: subnet.Name}
		}
		return host{kind: unused, addr: addr, subnet: subnet.Name}
	}
	if len(pods) > 0 {
		return pods[0]
	}
	if s.unread(ResourceSubnets, "") != nil || s.unread(ResourceNodes, "") != nil {
		return host{kind: hidden, addr: addr}
	}
	return host{kind: outside, addr: addr}
}

func contains(subnet *kubeovnv1.Subnet, addr netip.Addr) bool {
	cidrs, _ := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
	return slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return p.Contains(addr) })
}
