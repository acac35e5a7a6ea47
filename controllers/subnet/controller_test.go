// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/internal/address/ipam"
)

func TestASubnetLivesAndDies(t *testing.T) {
	n := startMeasured(t)
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"}}
	n.Create(s)
	n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.rows("Logical_Switch", "name", "a", "join", "ovn-default")
	if got := n.subnet("a").Status; got.V4AvailableIPs != 253 || got.V4AvailableIPRange != "10.20.0.2-10.20.0.254" {
		t.Errorf("of 10.20.0.0/24, %v addresses (%s) are free", got.V4AvailableIPs, got.V4AvailableIPRange)
	}

	n.measured("a", "1 of 32767 ports", "IPv4 10.20.0.0/24: 253 free, 0 held")
	if _, err := n.process.Allocator.Allocate("p", ipam.Request{Subnet: "a"}); err != nil {
		t.Fatal(err)
	}
	n.measured("a", "2 of 32767 ports", "IPv4 10.20.0.0/24: 252 free, 1 held")
	n.process.Allocator.Release("p")

	n.Get(s)
	n.Change(s, func() { s.Spec.CIDRBlock = "10.20.0.0/23,fd00:20::/64" })
	n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.rows("Logical_Router_Port", "networks", "10.16.0.1/16 fd00:10:16::1/64", "10.20.0.1/23 fd00:20::1/64", "100.64.0.1/16 fd00:100:64::1/112")
	if got := n.subnet("a").Spec; got.Gateway != "10.20.0.1,fd00:20::1" || got.Protocol != "Dual" {
		t.Errorf("a second family gave gateway %s and protocol %s", got.Gateway, got.Protocol)
	}

	n.measured("a", "1 of 32767 ports", "Dual 10.20.0.0/23,fd00:20::/64: 509 free, 0 held")

	n.Delete(s)
	n.Gone(s)
	n.measured("a")
	n.rows("Logical_Switch", "name", "join", "ovn-default")
	if n.process.Allocator.HasSubnet("a") {
		t.Error("the allocator still knows the subnet")
	}
}

func TestAppliedStateIsNotSentAgain(t *testing.T) {
	n := startMeasured(t)
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.rows("Logical_Router_Static_Route", "nexthop", "100.64.0.1", "fd00:100:64::1")
	n.idle() // the join subnet may not be committed yet
	before, s := n.process.Transactions(), n.subnet("ovn-default")
	n.Change(s, func() { s.Spec.NATOutgoing = false }) // only agents act on it
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	if sent := n.process.Transactions() - before; sent != 0 {
		t.Errorf("%d transactions were sent for nothing new", sent)
	}

	var notified atomic.Int32
	n.process.Allocator.Notify(func(string) { notified.Add(1) })
	time.Sleep(2500 * time.Millisecond)
	if notified.Load() != 0 {
		t.Errorf("an idle controller updated the allocator's subnets %d times", notified.Load())
	}
}

func TestFieldsWithoutEffectAreNamed(t *testing.T) {
	n := start(t)
	n.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24", NodeNetwork: "n"}})
	n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	if c := n.condition("a", kubeovnv1.ConditionFieldsSupported, metav1.ConditionFalse); !strings.Contains(c.Message, "nodeNetwork") {
		t.Errorf("message %q does not name the field nodeNetwork", c.Message)
	}
	n.Event(n.subnet("a"), eventsv1.Event{Reason: kubeovnv1.ReasonFieldsIgnored, Note: "nodeNetwork"})
	n.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: kubeovnv1.SubnetSpec{Vlan: "v"}})
	if c := n.condition("b", kubeovnv1.ConditionReady, metav1.ConditionFalse); c.Reason != kubeovnv1.ReasonFieldsIgnored {
		t.Errorf("an underlay subnet is %s: %s", c.Reason, c.Message)
	}
	n.rows("Logical_Switch", "name", "a", "join", "ovn-default")
}

// TestDefaultSubnetsOfKubeOVNCauseNoAlarm: every installation of Kube-OVN has these two, with these fields.
func TestDefaultSubnetsOfKubeOVNCauseNoAlarm(t *testing.T) {
	n := start(t)
	fields := kubeovnv1.ConditionFieldsSupported
	pods, join := n.subnet(kubeovnv1.DefaultSubnet), n.subnet(kubeovnv1.JoinSubnet)
	n.Change(pods, func() {
		pods.Spec.Default, pods.Spec.GatewayType, pods.Spec.NATOutgoing, pods.Spec.EnableLb = true, "distributed", true, new(true)
	})
	n.Change(join, func() { join.Spec.GatewayType, join.Spec.DisableInterConnection = "distributed", true })
	n.condition(kubeovnv1.DefaultSubnet, fields, metav1.ConditionTrue)
	n.condition(kubeovnv1.JoinSubnet, fields, metav1.ConditionTrue)
	n.condition(kubeovnv1.JoinSubnet, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.Change(pods, func() { pods.Spec.DisableInterConnection = true })
	n.condition(kubeovnv1.DefaultSubnet, fields, metav1.ConditionFalse)
}

func TestADeletedSubnetWaitsForItsAddresses(t *testing.T) {
	n := startMeasured(t)
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"}}
	n.Create(s)
	n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	_, err := n.process.Allocator.Allocate("web-0.default", ipam.Request{Subnet: "a"})
	n.Must(err)
	n.Eventually(func() string {
		if got := n.subnet("a").Status; got.V4UsingIPs != 1 || got.V4UsingIPRange != "10.20.0.2" {
			return fmt.Sprintf("%v addresses (%s) are in use, want 10.20.0.2", got.V4UsingIPs, got.V4UsingIPRange)
		}
		return ""
	})
	n.Delete(s)
	if c := n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionFalse); c.Reason != subnet.ReasonAddressesInUse || !strings.Contains(c.Message, "1 in use") {
		t.Errorf("a subnet with one address in use is %s: %s", c.Reason, c.Message)
	}
	n.rows("Logical_Switch", "name", "a", "join", "ovn-default")
	n.process.Allocator.Release("web-0.default")
	n.Gone(s)
	n.rows("Logical_Switch", "name", "join", "ovn-default")
}

func TestVpcsAndSubnetsAreDeletedInAnyOrder(t *testing.T) {
	n := start(t)
	for _, vpcFirst := range []bool{true, false} {
		vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}}
		s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.SubnetSpec{Vpc: "tenant", CIDRBlock: "10.16.0.0/16"}}
		if vpcFirst {
			n.Create(vpc, s)
		} else {
			n.Create(s)
			if c := n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionFalse); c.Reason != kubeovnv1.ReasonWaiting ||
				!strings.Contains(c.Message, "VPC tenant") {
				t.Errorf("a subnet without its VPC is %s: %s", c.Reason, c.Message)
			}
			n.Create(vpc)
		}
		n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionTrue)
		n.rows("Logical_Router", "name", "ovn-cluster", "tenant")
		if vpcFirst {
			n.Delete(vpc)
			n.Eventually(func() string {
				n.Get(vpc)
				if len(vpc.Status.Conditions) == 0 || !strings.Contains(fmt.Sprint(vpc.Status.Conditions), "its subnets are: a") {
					return fmt.Sprintf("the VPC does not say that subnet a is in its way: %+v", vpc.Status.Conditions)
				}
				return ""
			})
			n.Delete(s)
		} else {
			n.Delete(s, vpc)
		}
		n.Gone(s)
		n.Gone(vpc)
		n.rows("Logical_Router", "name", "ovn-cluster")
		n.rows("Logical_Switch", "name", "join", "ovn-default")
	}
}

func TestObjectsDeletedMeanwhileAreCleanedUp(t *testing.T) {
	n := start(t)
	n.node("n1", "192.0.2.11")
	n.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"}})
	n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.rows("Logical_Switch_Port", "name", "a-ovn-cluster", "join-ovn-cluster", "node-n1", "ovn-default-ovn-cluster")
	n.RestoresRows("Subnet//a")
	n.process.Stop()
	n.Clear()
	n.run()
	n.rows("Logical_Switch", "name", "join", "ovn-default")
	n.rows("Logical_Switch_Port", "name", "join-ovn-cluster", "ovn-default-ovn-cluster")
	if _, held := n.process.Allocator.Lookup("node-n1"); held {
		t.Error("a deleted node holds an address")
	}
}
