// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/validation"
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

func TestTheLastValidSpecOfASubnetApplies(t *testing.T) {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "new"}}
	if k8s.ValidSpec(s) != nil || k8s.Applied(s) != s {
		t.Error("a spec that was never validated counts as valid, or is not the applied one")
	}
	unchecked := k8s.ViewSubnet(s)
	problem := validation.Invalid("wrong")
	k8s.SetConditions(&s.Status.Conditions, 1, k8s.Validated(problem))
	if k8s.ViewSubnet(s) == unchecked {
		t.Error("objects that wait are not woken when the spec is found invalid")
	}
	s.Status.ValidatedSpec = &kubeovnv1.SubnetSpec{CIDRBlock: "last"}
	if got := k8s.Applied(s); got.Spec.CIDRBlock != "last" || s.Spec.CIDRBlock != "new" || k8s.Applied(got).Spec.CIDRBlock != "last" {
		t.Errorf("the applied spec of an invalid subnet is %+v", got.Spec)
	}
	k8s.SetConditions(&s.Status.Conditions, 1, k8s.Validated(nil))
	if k8s.Applied(s) != s {
		t.Error("a valid spec is not applied")
	}
}

func TestTheLastValidSpecOfAVpcApplies(t *testing.T) {
	v := &kubeovnv1.Vpc{Spec: kubeovnv1.VpcSpec{DefaultSubnet: "new", Namespaces: []string{}}}
	if k8s.AppliedVpc(v) != v || k8s.ViewVpc(v).Applied {
		t.Error("a VPC that was never valid has another spec")
	}
	v.Status.ValidatedSpec = &kubeovnv1.VpcSpec{DefaultSubnet: "last"}
	if got := k8s.AppliedVpc(v); got.Spec.DefaultSubnet != "last" || k8s.ViewVpc(v).Applied {
		t.Errorf("the applied spec is %+v", got.Spec)
	}
	if v.Status.ValidatedSpec.DefaultSubnet = "new"; !k8s.ViewVpc(v).Applied {
		t.Error("an empty list is another spec than none")
	}
}
