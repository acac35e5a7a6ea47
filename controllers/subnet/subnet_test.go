// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/validation"
)

func TestTheDefaultNetworkAppears(t *testing.T) {
	n := start(t)
	for _, name := range []string{"join", "ovn-default"} {
		n.condition(name, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	}
	n.rows("Logical_Router", "name", "ovn-cluster")
	n.rows("Logical_Switch", "name", "join", "ovn-default")
	n.rows("Logical_Router_Port", "name", "ovn-cluster-join", "ovn-cluster-ovn-default")
	n.rows("Logical_Router_Port", "networks", "10.16.0.1/16 fd00:10:16::1/64", "100.64.0.1/16 fd00:100:64::1/112")
	n.rows("Logical_Switch_Port", "name", "join-ovn-cluster", "ovn-default-ovn-cluster")
	n.rows("Logical_Router_Policy", "match",
		"ip4.dst == 10.16.0.0/16", "ip4.dst == 100.64.0.0/16", "ip6.dst == fd00:100:64::/112", "ip6.dst == fd00:10:16::/64")
	n.rows("Logical_Router_Static_Route", "nexthop", "100.64.0.1", "fd00:100:64::1")

	spec := n.subnet("ovn-default").Spec
	want := kubeovnv1.SubnetSpec{
		Default: true, Vpc: "ovn-cluster", Protocol: "Dual", CIDRBlock: "10.16.0.0/16,fd00:10:16::/64", Gateway: "10.16.0.1,fd00:10:16::1",
		ExcludeIPs: []string{"10.16.0.1", "fd00:10:16::1"}, Provider: "ovn", GatewayType: "distributed", NATOutgoing: true,
	}
	if fmt.Sprintf("%+v", spec) != fmt.Sprintf("%+v", want) {
		t.Errorf("spec of ovn-default:\n%+v, want\n%+v", spec, want)
	}
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}}
	n.Eventually(func() string {
		n.Get(vpc)
		got := vpc.Status
		if !got.Standby || !got.Default || got.Router != "ovn-cluster" || got.DefaultLogicalSwitch != "ovn-default" ||
			strings.Join(got.Subnets, ",") != "join,ovn-default" {
			return fmt.Sprintf("status of the VPC: %+v", got)
		}
		return ""
	})
}

func TestWhatUsersSetStays(t *testing.T) {
	n := start(t)
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	s := n.subnet("ovn-default")
	n.Change(s, func() {
		s.Spec.NATOutgoing = false
		s.Spec.ExcludeIPs = []string{"10.16.0.10..10.16.0.20"}
	})
	n.run()
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	if got := n.subnet("ovn-default").Spec; got.NATOutgoing || strings.Join(got.ExcludeIPs, " ") != "10.16.0.10..10.16.0.20" {
		t.Errorf("the user's spec became %+v", got)
	}
}

func TestASubnetLivesAndDies(t *testing.T) {
	n := startMeasured(t)
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"}}
	n.Create(s)
	n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.rows("Logical_Switch", "name", "a", "join", "ovn-default")
	if got := n.subnet("a").Status; got.V4AvailableIPs != 253 || got.V4AvailableIPRange != "10.20.0.2-10.20.0.254" {
		t.Errorf("of 10.20.0.0/24, %v addresses (%s) are free", got.V4AvailableIPs, got.V4AvailableIPRange)
	}

	n.measured("a", "IPv4 10.20.0.0/24: 253 free, 0 held")
	if _, err := n.process.Allocator.Allocate("p", ipam.Request{Subnet: "a"}); err != nil {
		t.Fatal(err)
	}
	n.measured("a", "IPv4 10.20.0.0/24: 252 free, 1 held")
	n.process.Allocator.Release("p")

	n.Get(s)
	n.Change(s, func() { s.Spec.CIDRBlock = "10.20.0.0/23,fd00:20::/64" })
	n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.rows("Logical_Router_Port", "networks", "10.16.0.1/16 fd00:10:16::1/64", "10.20.0.1/23 fd00:20::1/64", "100.64.0.1/16 fd00:100:64::1/112")
	if got := n.subnet("a").Spec; got.Gateway != "10.20.0.1,fd00:20::1" || got.Protocol != "Dual" {
		t.Errorf("a second family gave gateway %s and protocol %s", got.Gateway, got.Protocol)
	}

	n.measured("a", "Dual 10.20.0.0/23,fd00:20::/64: 509 free, 0 held")

	n.Delete(s)
	n.Gone(s)
	n.measured("a")
	n.rows("Logical_Switch", "name", "join", "ovn-default")
	if n.process.Allocator.HasSubnet("a") {
		t.Error("the allocator still knows the subnet")
	}
}

func TestWhatIsInForceIsNotSentAgain(t *testing.T) {
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

func TestWrongSpecsAreExplainedAndChangeNothing(t *testing.T) {
	n := start(t)
	n.node("host", "198.51.100.11")
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	for _, tt := range []struct{ name, cidr, gateway, reason, message string }{
		{"an overlap with an older subnet", "10.16.8.0/24", "", validation.ReasonCIDRConflict, "subnet ovn-default"},
		{"an overlap with Services", "10.100.0.0/16", "", validation.ReasonCIDRConflict, "10.96.0.0/12"},
		{"the address of a node inside", "198.51.100.0/24", "", validation.ReasonCIDRConflict, "node host"},
		{"a gateway outside", "10.30.0.0/24", "10.31.0.1", validation.ReasonGatewayInvalid, "10.31.0.1"},
		{"no CIDR", "ten", "", validation.ReasonCIDRInvalid, "ten"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "wrong"}}
			s.Spec.CIDRBlock, s.Spec.Gateway = tt.cidr, tt.gateway
			if err := n.Client.Create(n.Context(), s); apierrors.IsInvalid(err) && strings.Contains(err.Error(), tt.message) {
				return // the API server rejected it
			} else if err != nil {
				t.Fatal(err)
			}
			c := n.condition("wrong", kubeovnv1.ConditionValidated, metav1.ConditionFalse)
			if c.Reason != tt.reason || !strings.Contains(c.Message, tt.message) {
				t.Errorf("condition %s: %s, want %s and a message with %q", c.Reason, c.Message, tt.reason, tt.message)
			}
			n.Event(s, eventsv1.Event{Reason: tt.reason})
			n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
			n.rows("Logical_Switch", "name", "join", "ovn-default")
			n.Delete(s)
			n.Gone(s)
		})
	}
}

// Nodes use the last valid spec, even if the controller restarts meanwhile.
func TestTheSpecThatWasRightLastIsKept(t *testing.T) {
	n := start(t)
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{
		CIDRBlock: "10.20.0.0/24", NATOutgoing: true, ACLs: []kubeovnv1.ACL{{Direction: "to-lport", Priority: 1000, Match: "ip4", Action: "drop"}},
	}}
	n.Create(s)
	n.condition("s", kubeovnv1.ConditionValidated, metav1.ConditionTrue)
	rightNow := func() *kubeovnv1.SubnetSpec {
		spec := n.subnet("s").Spec
		spec.ACLs = nil
		return &spec
	}
	kept := func(want *kubeovnv1.SubnetSpec) {
		t.Helper()
		if got := n.subnet("s").Status.ValidatedSpec; !reflect.DeepEqual(got, want) {
			t.Errorf("nodes go by %+v, want %+v", got, want)
		}
	}
	before := rightNow()
	kept(before)
	n.Change(s, func() { s.Spec.CIDRBlock, s.Spec.NATOutgoing = "10.16.0.0/24", false })
	n.condition("s", kubeovnv1.ConditionValidated, metav1.ConditionFalse)
	kept(before)
	n.Change(s, func() { s.Spec.CIDRBlock = "10.20.0.0/23" })
	n.condition("s", kubeovnv1.ConditionValidated, metav1.ConditionTrue)
	kept(rightNow())
}

// CIDRs of Services may be added while the cluster runs.
func TestServiceCIDRObjectsCountAsServices(t *testing.T) {
	n := start(t)
	more := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.201.0.0/16"}},
	}
	n.Create(more)
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "inside"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.201.4.0/24"}}
	n.Create(s)
	if c := n.condition("inside", kubeovnv1.ConditionValidated, metav1.ConditionFalse); !strings.Contains(c.Message, "10.201.0.0/16") {
		t.Errorf("the condition says: %s", c.Message)
	}
	n.Change(more, func() { more.Finalizers = nil }) // no controller of ServiceCIDRs runs here
	n.Rests("subnet")
	n.Delete(more)
	n.condition("inside", kubeovnv1.ConditionReady, metav1.ConditionTrue)
}

func TestASubnetInForceOutlivesOverlaps(t *testing.T) {
	n := start(t)
	first := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "first"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"}}
	second := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.21.0.0/24"}}
	n.Create(first)
	n.condition("first", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.Create(second)
	n.condition("second", kubeovnv1.ConditionReady, metav1.ConditionTrue)

	n.Get(first)
	n.Change(first, func() { first.Spec.CIDRBlock, first.Spec.Gateway = "10.21.0.0/16", "10.21.0.1" })
	n.condition("first", kubeovnv1.ConditionValidated, metav1.ConditionFalse)
	n.condition("second", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.rows("Logical_Router_Port", "networks",
		"10.16.0.1/16 fd00:10:16::1/64", "10.20.0.1/24", "10.21.0.1/24", "100.64.0.1/16 fd00:100:64::1/112")

	n.Delete(second)
	n.condition("first", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.rows("Logical_Router_Port", "networks", "10.16.0.1/16 fd00:10:16::1/64", "10.21.0.1/16", "100.64.0.1/16 fd00:100:64::1/112")
}

func TestFieldsWithoutEffectAreNamed(t *testing.T) {
	n := start(t)
	n.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24", NodeNetwork: "n"}})
	n.condition("a", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	if c := n.condition("a", kubeovnv1.ConditionFieldsSupported, metav1.ConditionFalse); !strings.Contains(c.Message, "nodeNetwork") {
		t.Errorf("message %q does not name the field nodeNetwork", c.Message)
	}
	n.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.21.0.0/24", Vlan: "v"}})
	if c := n.condition("b", kubeovnv1.ConditionReady, metav1.ConditionFalse); c.Reason != kubeovnv1.ReasonFieldsIgnored {
		t.Errorf("an underlay subnet is %s: %s", c.Reason, c.Message)
	}
	n.rows("Logical_Switch", "name", "a", "join", "ovn-default")
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

func TestWhatWasDeletedMeanwhileGoes(t *testing.T) {
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
