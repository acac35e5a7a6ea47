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

// sharer is a pod of a subnet that shares addresses with others.
func (n *network) sharer(name, subnet, vips string) *corev1.Pod {
	n.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{
			kubeovnv1.AnnotationLogicalSwitch.Key(): subnet, kubeovnv1.AnnotationPortVips.Key(): vips,
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	n.Create(p)
	n.Cleanup(func() { _ = client.IgnoreNotFound(n.Client.Delete(n.Context(), p, client.GracePeriodSeconds(0))) })
	return p
}

func TestVipsAreSharedByThePodsThatSaySo(t *testing.T) {
	n := start(t)
	first := n.sharer("first", "shop", "10.20.0.100")
	n.sharer("other", "elsewhere", "10.20.0.100")
	s := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:20::/64", Vips: []string{"10.20.0.100", "fd00:20::100"}})
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents", "first.default")
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "")
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-ip", "fd00:20::100")
	if got := n.subnet("shop").Status.V4AvailableIPRange; got != "10.20.0.2-10.20.0.99,10.20.0.101-10.20.0.254" {
		t.Errorf("pods can get %s", got)
	}

	second := n.sharer("second", "shop", "fd00:20::100, 10.20.0.100")
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents", "first.default,second.default")
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "second.default")
	n.Must(n.Client.Delete(n.Context(), first, client.GracePeriodSeconds(0)))
	n.option("Logical_Switch_Port", "name", "shop-vip-10.20.0.100", "options", "virtual-parents", "second.default")
	n.Get(second)
	n.Change(second, func() { second.Annotations[kubeovnv1.AnnotationPortVips.Key()] = "10.20.0.100" })
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "")

	for _, name := range []string{"virt-launcher-vm-a", "virt-launcher-vm-b"} { // a machine that moves
		runs := n.sharer(name, "shop", "fd00:20::100")
		n.Change(runs, func() { runs.Annotations[kubeovnv1.AnnotationMachine.Key()] = "vm" })
	}
	n.option("Logical_Switch_Port", "name", "shop-vip-fd00:20::100", "options", "virtual-parents", "vm.default")

	n.change(s, func() { s.Spec.Vips = []string{"fd00:20::100"} })
	n.rows("Logical_Switch_Port", "name", "join-ovn-cluster", "ovn-default-ovn-cluster", "shop-ovn-cluster", "shop-vip-fd00:20::100")
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

func TestAFullSubnetHasNoQuerierUntilAnAddressIsFree(t *testing.T) {
	n := start(t)
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
