// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
)

// SubnetView is what other objects depend on in a subnet: not its counts.
type SubnetView struct {
	Generation int64
	// Validated: the present spec was found right.
	Validated bool
}

// ViewSubnet returns the view of a subnet.
func ViewSubnet(s *kubeovnv1.Subnet) SubnetView {
	return SubnetView{
		Generation: s.Generation,
		Validated:  IsTrue(s.Status.Conditions, kubeovnv1.ConditionValidated, s.Generation),
	}
}

// InternalIPs are the node's addresses of type InternalIP, in its own order of preference.
func InternalIPs(node *corev1.Node) []netip.Addr {
	return nodeIPs(node, func(t corev1.NodeAddressType) bool { return t == corev1.NodeInternalIP })
}

// StatusIPs are all IP addresses in the node's status, whatever their type, in its own order.
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
