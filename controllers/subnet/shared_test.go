// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipam"
)

// sharer creates a pod with a port on a subnet that shares addresses with other pods. It runs a virtual machine unless machine is "".
func (n *network) sharer(name, machine, subnet, vips string) *corev1.Pod {
	n.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{kubeovnv1.AnnotationPortVips.Key(): vips}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	if machine != "" {
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: machine, UID: "1", Controller: new(true)},
		}
	}
	n.Create(p)
	n.publish(p, map[kubeovnv1.Annotation]string{kubeovnv1.AnnotationLogicalSwitch: subnet, kubeovnv1.AnnotationMachine: machine})
	n.Cleanup(func() { _ = client.IgnoreNotFound(n.Client.Delete(n.Context(), p, client.GracePeriodSeconds(0))) })
	return p
}

// publish writes results on a pod, as the pod controller does and users may do.
func (n *network) publish(p *corev1.Pod, results map[kubeovnv1.Annotation]string) {
	n.Helper()
	n.Change(p, func() {
		p.Annotations[kubeovnv1.AnnotationAllocated.Key()], p.Annotations[kubeovnv1.AnnotationPodUID.Key()] = "true", string(p.UID)
		for a, value := range results {
			p.Annotations[a.Key()] = value
		}
	})
}

func TestVipsAreSharedByThePodsThatSaySo(t *testing.T) {
	n := start(t)
	first := n.sharer("first", "", "shop", "10.20.0.100")
	n.sharer("other", "", "elsewhere", "10.20.0.100")
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:20::/64", Vips: []string{"10.20.0.100", "fd00:20::100"}})
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents", "first.default")
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "")
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-ip", "fd00:20::100")
	if got := n.subnet("shop").Status.V4AvailableIPRange; got != "10.20.0.2-10.20.0.99,10.20.0.101-10.20.0.254" {
		t.Errorf("pods can get %s", got)
	}

	second := n.sharer("second", "", "shop", "fd00:20::100, 10.20.0.100")
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents", "first.default,second.default")
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "second.default")
	n.Must(n.Client.Delete(n.Context(), first, client.GracePeriodSeconds(0)))
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents", "second.default")
	n.Get(second)
	n.Change(second, func() { second.Annotations[kubeovnv1.AnnotationPortVips.Key()] = "10.20.0.100" })
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "")

	for _, name := range []string{"virt-launcher-vm-a", "virt-launcher-vm-b"} { // a live migration
		n.sharer(name, "vm", "shop", "fd00:20::100")
	}
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "vm.default")

	n.change(s, func() { s.Spec.Vips = []string{"fd00:20::100"} })
	n.rows("Logical_Switch_Port", "name", "join-ovn-cluster", "ovn-default-ovn-cluster", "shop-ovn-cluster", "shop-vip-fd00:20::100")
}

// Users can write any annotations on a pod, but they can choose no port other than the port of the pod.
func TestPodsShareVipsByTheirOwnPortsOnly(t *testing.T) {
	n := start(t)
	n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24", Vips: []string{"10.20.0.100"}})
	unpublished := n.sharer("unpublished", "", "shop", "10.20.0.100")
	n.Change(unpublished, func() { delete(unpublished.Annotations, kubeovnv1.AnnotationPodUID.Key()) })
	for i, machine := range []string{"a\x00b", "victim", "a,victim", "\n"} {
		p := n.sharer(fmt.Sprintf("hostile-%d", i), "", "shop", "10.20.0.100")
		n.publish(p, map[kubeovnv1.Annotation]string{kubeovnv1.AnnotationMachine: machine})
	}
	for i, machine := range []string{"a\x00b", "a,victim", "..", "UPPER"} { // the API server accepts any name in an owner reference
		n.sharer(fmt.Sprintf("owned-%d", i), machine, "shop", "10.20.0.100")
	}
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents",
		"hostile-0.default,hostile-1.default,hostile-2.default,hostile-3.default,owned-0.default,owned-1.default,owned-2.default,owned-3.default")
}

func TestMulticastHasAQuerierThatKeepsItsAddress(t *testing.T) {
	n := start(t)
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:20::/64", EnableMulticastSnoop: true})
	if s.Status.McastQuerierIP != "10.20.0.2" || s.Status.McastQuerierMAC != "06:4b:0a:14:00:02" {
		t.Fatalf("status is %+v", s.Status)
	}
	n.option("Logical_Switch", "name", "shop", "other_config", "mcast_snoop", "true")
	n.option("Logical_Switch", "name", "shop", "other_config", "mcast_ip4_src", "10.20.0.2")
	n.option("Logical_Switch", "name", "shop", "other_config", "mcast_eth_src", "06:4b:0a:14:00:02")
	n.option("Logical_Switch", "name", "shop", "other_config", "mcast_ip6_src", "fe80::44b:aff:fe14:2")
	record := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "mcast-querier.shop"}}
	n.Eventually(func() string {
		if !n.Get(record) || record.Spec.V4IPAddress != "10.20.0.2" || record.Spec.Subnet != "shop" {
			return fmt.Sprintf("the IP object is %+v", record.Spec)
		}
		return ""
	})

	n.run()
	if lease, _ := n.process.Allocator.Lookup("mcast-querier/shop"); len(lease.Addresses) != 1 || lease.Addresses[0].String() != "10.20.0.2" {
		t.Errorf("after a restart the querier has %v", lease)
	}
	n.change(s, func() { s.Spec.CIDRBlock, s.Spec.Gateway, s.Spec.ExcludeIPs = "10.21.0.0/24", "", nil })
	n.option("Logical_Switch", "name", "shop", "other_config", "mcast_ip4_src", "10.21.0.2")

	n.change(s, func() { s.Spec.EnableMulticastSnoop = false })
	n.option("Logical_Switch", "name", "shop", "other_config", "mcast_snoop", "")
	n.Gone(record)
	if got := n.subnet("shop").Status; got.McastQuerierIP != "" || got.McastQuerierMAC != "" {
		t.Errorf("status is %+v", got)
	}
	n.change(s, func() { s.Spec.EnableMulticastSnoop = true })
	n.Delete(s)
	n.Gone(s)
	n.Gone(record)
}

// Both names are mcast-querier.shop. The IP object of a pod has precedence, so that both controllers do not replace it in turns.
func TestAPodWithTheNameOfAQuerierKeepsItsIPObject(t *testing.T) {
	n := start(t)
	of := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "mcast-querier.shop"}, Spec: kubeovnv1.IPSpec{
		PodName: "mcast-querier", Namespace: "shop", Subnet: "other", IPAddress: "10.30.0.9", V4IPAddress: "10.30.0.9",
	}}
	n.Create(of)
	uid := of.UID
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24", EnableMulticastSnoop: true})
	if s.Status.McastQuerierIP != "10.20.0.2" {
		t.Errorf("status is %+v", s.Status)
	}
	n.Rests("subnet")
	if !n.Get(of) || of.UID != uid {
		t.Errorf("the IP object of the pod is %+v", of)
	}
	n.Delete(of)
	n.Eventually(func() string {
		if !n.Get(of) || of.Spec.PodName != "" || of.Spec.V4IPAddress != "10.20.0.2" {
			return fmt.Sprintf("the IP object is %+v", of.Spec)
		}
		return ""
	})
}

func TestTheRecordOfAQuerierIsReplacedOnceItsFinalizersAreRemoved(t *testing.T) {
	n := start(t)
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:20::/64", EnableMulticastSnoop: true})
	record := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "mcast-querier.shop"}}
	n.Get(record)
	n.Change(record, func() { record.Finalizers = []string{"example.org/slow"} })
	n.Get(s)
	n.Change(s, func() { s.Spec.CIDRBlock, s.Spec.Gateway, s.Spec.ExcludeIPs = "10.21.0.0/24,fd00:21::/64", "", nil })
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, "IP mcast-querier.shop has a former address")
	n.option("Logical_Switch", "name", "shop", "other_config", "mcast_ip4_src", "10.21.0.2")
	n.Rests("subnet")
	n.Get(record)
	n.Change(record, func() { record.Finalizers = nil })
	n.Ready(s)
	n.Eventually(func() string {
		if !n.Get(record) || record.Spec.V4IPAddress != "10.21.0.2" {
			return fmt.Sprintf("the IP object is %+v", record.Spec)
		}
		return ""
	})
}

func TestAFullSubnetHasNoQuerierUntilAnAddressIsFree(t *testing.T) {
	n := startMeasured(t)
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/30"})
	_, err := n.process.Allocator.Allocate("web.default", ipam.Request{Subnet: "shop"})
	n.Must(err)
	n.Get(s)
	n.Change(s, func() { s.Spec.EnableMulticastSnoop = true })
	if c := n.condition("shop", kubeovnv1.ConditionReady, metav1.ConditionFalse); c.Reason != kubeovnv1.ReasonWaiting {
		t.Errorf("condition says %s: %s", c.Reason, c.Message)
	}
	n.option("Logical_Switch", "name", "shop", "other_config", "mcast_querier", "false")
	n.process.Allocator.Release("web.default")
	n.condition("shop", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.option("Logical_Switch", "name", "shop", "other_config", "mcast_querier", "true")
}
