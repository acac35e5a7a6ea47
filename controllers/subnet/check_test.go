// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"reflect"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/validation"
)

func TestWrongSpecsAreExplainedAndChangeNothing(t *testing.T) {
	n := start(t)
	n.host("host", "198.51.100.11")
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
	rightNow := func() *kubeovnv1.SubnetSpec { return &n.subnet("s").Spec }
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

func TestAnAppliedSubnetOutlivesOverlaps(t *testing.T) {
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

// TestASubnetGivesWayToOneWhoseRowsAreOnTheirWay: many subnets are reconciled in parallel, and the rows of the first one are in flight when
// the second one is checked.
func TestASubnetGivesWayToOneWhoseRowsAreOnTheirWay(t *testing.T) {
	n := start(t)
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.idle()
	create := func(name, cidr string) {
		t.Helper()
		n.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr}})
	}
	n.process.Northbound().Hold()
	create("later", "10.120.0.0/24")
	n.process.Northbound().AwaitHeld()
	create("earlier", "10.120.0.0/25") // it precedes by its name, because both have the same creation second
	if c := n.condition("earlier", kubeovnv1.ConditionValidated, metav1.ConditionFalse); c.Reason != validation.ReasonCIDRConflict {
		t.Errorf("condition says %s: %s", c.Reason, c.Message)
	}
	n.process.Northbound().Release()
	n.condition("later", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.rows("Logical_Switch", "name", "join", "later", "ovn-default")
}
