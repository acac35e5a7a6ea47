// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/validation"
)

// SubnetView is the part of a subnet that other objects depend on, without its address counts.
type SubnetView struct {
	Generation int64
	// Checked is true if the current spec was checked, Validated if it was found valid.
	Checked, Validated bool
}

// ViewSubnet returns the view of a subnet.
func ViewSubnet(s *kubeovnv1.Subnet) SubnetView {
	view := SubnetView{Generation: s.Generation}
	if c := apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionValidated); c != nil && c.ObservedGeneration == s.Generation {
		view.Checked, view.Validated = true, c.Status == metav1.ConditionTrue
	}
	return view
}

// ValidSpec returns the spec of a subnet that OVN, the allocator and nodes apply: the current one if it was found valid, otherwise the last
// valid one. It returns nil if no spec was found valid yet.
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

// Applied returns a subnet with the spec of ValidSpec, and with its current spec if there is none. It shares memory with s.
func Applied(s *kubeovnv1.Subnet) *kubeovnv1.Subnet { return cmp.Or(WithValidSpec(s), s) }

// VpcView is the part of a VPC that other objects depend on.
type VpcView struct {
	Generation int64
	// Applied is true if the current spec is the last valid one.
	Applied bool
}

// ViewVpc returns the view of a VPC.
func ViewVpc(v *kubeovnv1.Vpc) VpcView {
	return VpcView{v.Generation, equality.Semantic.DeepEqual(v.Status.ValidatedSpec, &v.Spec)}
}

// AppliedVpc returns a VPC with its last valid spec, which is applied while the current one is invalid or not validated yet. If no spec was
// found valid yet, it is the VPC itself: the valid entries of its spec are applied. The result shares memory with v.
func AppliedVpc(v *kubeovnv1.Vpc) *kubeovnv1.Vpc {
	if v.Status.ValidatedSpec == nil || IsTrue(v.Status.Conditions, kubeovnv1.ConditionValidated, v.Generation) { // usually: without a copy
		return v
	}
	applied := *v
	applied.Spec = *v.Status.ValidatedSpec
	return &applied
}

// SpecView is the part of an IPPool or a Vip that other objects depend on.
type SpecView struct {
	Generation int64
	// Applied is true if the current spec is the last valid one.
	Applied bool
}

// ViewPool returns the view of an IPPool.
func ViewPool(p *kubeovnv1.IPPool) SpecView {
	return SpecView{p.Generation, equality.Semantic.DeepEqual(p.Status.ValidatedSpec, &p.Spec)}
}

// ViewVip returns the view of a Vip.
func ViewVip(v *kubeovnv1.Vip) SpecView {
	return SpecView{v.Generation, equality.Semantic.DeepEqual(v.Status.ValidatedSpec, &v.Spec)}
}

// AppliedPool returns an IPPool with its last valid spec, like AppliedVpc.
func AppliedPool(p *kubeovnv1.IPPool) *kubeovnv1.IPPool {
	if p.Status.ValidatedSpec == nil || IsTrue(p.Status.Conditions, kubeovnv1.ConditionValidated, p.Generation) {
		return p
	}
	applied := *p
	applied.Spec = *p.Status.ValidatedSpec
	return &applied
}

// AppliedVip returns a Vip with its last valid spec, like AppliedVpc.
func AppliedVip(v *kubeovnv1.Vip) *kubeovnv1.Vip {
	if v.Status.ValidatedSpec == nil || IsTrue(v.Status.Conditions, kubeovnv1.ConditionValidated, v.Generation) {
		return v
	}
	applied := *v
	applied.Spec = *v.Status.ValidatedSpec
	return &applied
}

// AppliedEgress returns the spec of an EgressAddress that is applied: the current one, or the last valid one; nil if none was valid. It shares memory with e.
func AppliedEgress(e *kubeovnv1.EgressAddress) *kubeovnv1.EgressAddressSpec {
	if _, problem := validation.EgressAddress(&e.Spec); problem != nil {
		return e.Status.ValidatedSpec
	}
	return &e.Spec
}

// AddressesOfEgress returns the addresses on nodes in the applied spec of an EgressAddress.
func AddressesOfEgress(e *kubeovnv1.EgressAddress) []netip.Addr {
	spec := AppliedEgress(e)
	if spec == nil {
		return nil
	}
	parsed, _ := validation.EgressAddress(spec)
	return parsed.Addresses
}

// ViewAddressesOfEgress is AddressesOfEgress as a view.
func ViewAddressesOfEgress(e *kubeovnv1.EgressAddress) string {
	return ipfamily.Join(AddressesOfEgress(e))
}

// ValidTag returns the tag that the subnets of a Vlan have; false if they have to wait.
func ValidTag(v *kubeovnv1.Vlan) (int, bool) {
	if id := v.Status.ValidatedID; id != nil {
		return *id, true
	}
	return 0, false
}

// InternalIPs returns the InternalIPs of a node: the first of each family in its status, as the API server and the scheduler use them. Others are
// ignored, because a kubelet may write any number of them. The kubelet chooses them: what other nodes, pods or OVN depend on uses
// AddressesOfNode.
func InternalIPs(node *corev1.Node) []netip.Addr { return FirstOfFamilies(OwnIPs(node)) }

// OwnIPs returns all InternalIPs of a node, for the node itself only.
func OwnIPs(node *corev1.Node) []netip.Addr {
	return nodeIPs(node, func(t corev1.NodeAddressType) bool { return t == corev1.NodeInternalIP })
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

// ServesServices reports whether the VPC's load balancers serve the ports of a Subnet. It is false for `join` by default, because nodes
// serve Services themselves.
func ServesServices(s *kubeovnv1.Subnet) bool {
	if s.Spec.EnableLb != nil {
		return *s.Spec.EnableLb
	}
	return s.Name != kubeovnv1.JoinSubnet
}
