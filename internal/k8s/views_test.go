// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
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

func TestTheFirstInternalIPOfEachFamilyCounts(t *testing.T) {
	node := &corev1.Node{}
	for _, address := range []string{"no address", "10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "10.0.0.3"} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	if got := ipfamily.Join(k8s.InternalIPs(node)); got != "10.0.0.1,2001:db8::1" {
		t.Errorf("InternalIPs: %s", got)
	}
}

func TestAddressesOfNodesAreInTheirIPObjects(t *testing.T) {
	record := func(change func(*kubeovnv1.IP)) *kubeovnv1.IP {
		ip := &kubeovnv1.IP{
			ObjectMeta: metav1.ObjectMeta{Name: "node-a", Annotations: map[string]string{
				kubeovnv1.AnnotationNodeAddresses.Key(): "10.0.0.1,10.0.0.2,2001:db8::1", kubeovnv1.AnnotationClaimedAddresses.Key(): "10.0.0.1",
			}},
			Spec: kubeovnv1.IPSpec{NodeName: "a"},
		}
		change(ip)
		return ip
	}
	for name, tt := range map[string]struct {
		change        func(*kubeovnv1.IP)
		node          string
		used, claimed string
	}{
		"of a node":                     {func(*kubeovnv1.IP) {}, "a", "10.0.0.1,2001:db8::1", "10.0.0.1"},
		"of a pod with the name":        {func(ip *kubeovnv1.IP) { ip.Spec.Namespace = "shop" }, "", "", ""},
		"of a port with another name":   {func(ip *kubeovnv1.IP) { ip.Name = "node-b" }, "", "", ""},
		"of no node":                    {func(ip *kubeovnv1.IP) { ip.Spec.NodeName = "" }, "", "", ""},
		"of a node without any address": {func(ip *kubeovnv1.IP) { ip.Annotations = nil }, "a", "", ""},
	} {
		ip := record(tt.change)
		if node, used, claimed := k8s.NodeOf(ip), ipfamily.Join(k8s.AddressesOfNode(ip)), ipfamily.Join(k8s.ClaimOfNode(ip)); node != tt.node || used != tt.used || claimed != tt.claimed {
			t.Errorf("%s: node %q, addresses %q, claimed %q", name, node, used, claimed)
		}
	}
}
