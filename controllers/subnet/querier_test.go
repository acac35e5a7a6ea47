// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
)

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
	if allocation, _ := n.process.Allocator.Lookup("mcast-querier/shop"); len(allocation.Addresses) != 1 || allocation.Addresses[0].String() != "10.20.0.2" {
		t.Errorf("after a restart the querier has %v", allocation)
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
