// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

func TestAddressesOfNodes(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "node-1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
		{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeHostName, Address: "2001:db8::1"},
	}}}
	if got := ipfamily.Join(k8s.InternalIPs(node)); got != "10.0.0.1" {
		t.Errorf("InternalIPs: %s", got)
	}
	if got := ipfamily.Join(k8s.StatusIPs(node)); got != "10.0.0.1,192.0.2.1,2001:db8::1" {
		t.Errorf("StatusIPs: %s", got)
	}
}
