// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// mirror returns a pod as a kubelet creates it for a static pod.
func mirror(namespace, name string, annotations ...string) *corev1.Pod {
	p := newPod(namespace, name, annotations...)
	p.Annotations[corev1.MirrorPodAnnotationKey] = "hash"
	return p
}

// TestMirrorPodsEnterNoNetworkOfANamespace creates mirror pods that request the networks of the tenant in whose namespace a stolen node created them.
func TestMirrorPodsEnterNoNetworkOfANamespace(t *testing.T) {
	w := newWorld(t)
	w.namespace("shop", nil)
	w.namespace("kube-system", nil)
	w.subnet("ovn-default", "10.16.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Vips = []string{"10.16.0.99"} })
	w.vpc("blue", kubeovnv1.VpcSpec{Namespaces: []string{"shop"}})
	w.subnet("blue-net", "10.17.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Vpc, s.Namespaces = "blue", []string{"shop"} })
	w.Create(&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}, Spec: kubeovnv1.IPPoolSpec{Subnet: "ovn-default", IPs: []string{"10.16.0.100"}}})
	w.start()

	inDefault := func(p *corev1.Pod) {
		t.Helper()
		w.Create(p)
		network := w.allocated(p)
		if network.LogicalSwitch != "ovn-default" || network.LogicalRouter != kubeovnv1.DefaultVpc || strings.HasSuffix(address(p), ".100") {
			t.Errorf("the mirror pod %s/%s has %s of subnet %s", p.Namespace, p.Name, address(p), network.LogicalSwitch)
		}
	}
	inDefault(mirror("kube-system", "registry"))
	inDefault(mirror("shop", "plain"))
	w.Eventually(func() string { // for rules for external addresses
		ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "plain.shop"}}
		if err := w.Client.Get(w.Context(), client.ObjectKeyFromObject(ip), ip); err != nil {
			return err.Error()
		}
		if _, static := ip.Labels[kubeovnv1.LabelStaticPod]; !static {
			return fmt.Sprintf("the labels are %v", ip.Labels)
		}
		return ""
	})
	inDefault(mirror("shop", "of-a-pool", "ip_pool", "pool"))
	inDefault(mirror("shop", "wrong", "ip_address", "10.17.0.300"))
	greedy := mirror("shop", "greedy", "logical_switch", "blue-net", "security_groups", "trusted", "port_vips", "10.16.0.99", "north_gateway", "10.16.0.5", "ingress_rate", "1")
	greedy.Annotations[kubeovnv1.KeyEgressBandwidth] = "1M"
	inDefault(greedy)
	w.warnedOf(greedy, "StaticPodRequestsIgnored", "annotation ovn.kubernetes.io/logical_switch, ")
	w.warnedOf(greedy, "StaticPodRequestsIgnored", "the subnets of its namespace")
	w.warnedOf(greedy, "StaticPodRequestsIgnored", "annotation "+kubeovnv1.KeyEgressBandwidth)
	w.warnedOf(greedy, "StaticPodRequestsIgnored", "annotation ovn.kubernetes.io/ingress_rate")
	for _, row := range w.Database.Rows("Logical_Switch_Port") {
		if row["type"] == "virtual" {
			t.Errorf("the mirror pod shares an address: %v", row)
		}
	}
	if p := w.pod("shop", "ordinary"); p.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()] != "blue-net" {
		t.Errorf("an ordinary pod is in %s", p.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()])
	}
}

// TestAMirrorPodDoesNotTakeRetainedAddresses creates mirror pods with the name of an absent pod of a StatefulSet, and of an IP object that reserves addresses.
func TestAMirrorPodDoesNotTakeRetainedAddresses(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	set := w.statefulSet("db", 0, 1)
	first := replica(set, 0, "n1")
	w.Create(first)
	w.allocated(first)
	was := address(first)
	w.Delete(first)
	w.away(process, first)
	w.Create(reservation("reserved.default", kubeovnv1.IPSpec{PodName: "reserved", Namespace: "default", Subnet: "ovn-default", IPAddress: "10.16.0.50"}))
	w.held(process, "reserved.default", "10.16.0.50")

	for name, address := range map[string]string{"db-0": was, "reserved": "10.16.0.50"} {
		p := mirror("default", name)
		w.Create(p)
		w.warned(p, "a static pod does not get them")
		w.held(process, name+".default", address)
		w.Delete(p)
	}
	first = replica(set, 0, "n1")
	w.Create(first)
	if w.allocated(first); address(first) != was {
		t.Errorf("the pod of the StatefulSet has %s, want %s", address(first), was)
	}
}
