// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

// SubnetView is the part of a subnet that other objects depend on, without its address counts.
type SubnetView struct {
	Generation int64
	// Validated is true if the current spec was found valid.
	Validated bool
}

// ViewSubnet returns the view of a subnet.
func ViewSubnet(s *kubeovnv1.Subnet) SubnetView {
	return SubnetView{
		Generation: s.Generation,
		Validated:  IsTrue(s.Status.Conditions, kubeovnv1.ConditionValidated, s.Generation),
	}
}

// ValidSpec returns the spec of a subnet that OVN, the allocator and nodes apply: the current one if it was found valid, otherwise the last
// valid one, without its ACLs. It returns nil if no spec was found valid yet.
func ValidSpec(s *kubeovnv1.Subnet) *kubeovnv1.SubnetSpec {
	if ViewSubnet(s).Validated {
		return &s.Spec
	}
	return s.Status.ValidatedSpec
}

// WithValidSpec returns a subnet with the spec of ValidSpec, or nil if there is none. It shares memory with s.
func WithValidSpec(s *kubeovnv1.Subnet) *kubeovnv1.Subnet {
	spec := ValidSpec(s)
	switch spec {
	case nil:
		return nil
	case &s.Spec:
		return s
	}
	valid := *s
	valid.Spec = *spec
	return &valid
}

// ValidTag returns the tag that the subnets of a Vlan have; false if they have to wait.
func ValidTag(v *kubeovnv1.Vlan) (int, bool) {
	if id := v.Status.ValidatedID; id != nil {
		return *id, true
	}
	return v.Tag(), IsTrue(v.Status.Conditions, kubeovnv1.ConditionValidated, v.Generation) // of a version without validatedID
}

// InternalIPs returns the InternalIPs of a node: the first of each family in its status, as the API server and the scheduler use them. Others are
// ignored, because a kubelet may write any number of them. The kubelet chooses them: what other nodes, pods or OVN depend on uses
// AddressesOfNode.
func InternalIPs(node *corev1.Node) []netip.Addr {
	return FirstOfFamilies(nodeIPs(node, func(t corev1.NodeAddressType) bool { return t == corev1.NodeInternalIP }))
}

// FirstOfFamilies returns the first address of each family, in their order.
func FirstOfFamilies(addrs []netip.Addr) []netip.Addr {
	var first []netip.Addr
	for _, addr := range addrs {
		if !slices.ContainsFunc(first, func(a netip.Addr) bool { return ipfamily.Of(a) == ipfamily.Of(addr) }) {
			first = append(first, addr)
		}
	}
	return first
}

// NodeOf returns the node to whose port an IP object belongs; empty if the IP object belongs to no node.
func NodeOf(ip *kubeovnv1.IP) string {
	if ip.Spec.Namespace != "" || ip.Spec.NodeName == "" || ip.Name != kubeovnv1.NodePortName(ip.Spec.NodeName) {
		return ""
	}
	return ip.Spec.NodeName
}

// AddressesOfNode returns the node's own addresses, at most one per family, that the controller recorded in the IP object of the node's port. Kubelets and tenants
// cannot write IP objects. It returns nil for other IP objects.
func AddressesOfNode(ip *kubeovnv1.IP) []netip.Addr {
	return recorded(ip, kubeovnv1.AnnotationNodeAddresses)
}

// ClaimOfNode returns the addresses that the node claimed first, whether they are in use or not.
func ClaimOfNode(ip *kubeovnv1.IP) []netip.Addr {
	return recorded(ip, kubeovnv1.AnnotationClaimedAddresses)
}

func recorded(ip *kubeovnv1.IP, key kubeovnv1.Annotation) []netip.Addr {
	if NodeOf(ip) == "" || ip.Annotations[key.Key()] == "" {
		return nil
	}
	return FirstOfFamilies(ipfamily.ValidAddrs(strings.Split(ip.Annotations[key.Key()], ",")...))
}

// StatusIPs returns all IP addresses in the node's status, of any type, in the same order.
func StatusIPs(node *corev1.Node) []netip.Addr {
	return nodeIPs(node, func(corev1.NodeAddressType) bool { return true })
}

func nodeIPs(node *corev1.Node, of func(corev1.NodeAddressType) bool) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range node.Status.Addresses {
		if !of(a.Type) {
			continue
		}
		if addr, err := ipfamily.ParseAddr(a.Address); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
