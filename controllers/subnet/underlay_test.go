// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/validation"
)

// vlan creates a Vlan that its controller has validated.
func (n *network) vlan(name string, id int) *kubeovnv1.Vlan {
	n.Helper()
	v := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VlanSpec{ID: id, Provider: "net1"}}
	n.Create(v)
	n.validate(v, nil)
	return v
}

func (n *network) validate(v *kubeovnv1.Vlan, problem *validation.Problem) {
	n.Helper()
	base := v.DeepCopy()
	k8s.SetConditions(&v.Status.Conditions, v.Generation, k8s.Validated(problem))
	if tag := v.Tag(); problem == nil {
		v.Status.ValidatedID = &tag
	}
	n.Must(n.Client.Status().Patch(n.Context(), v, client.MergeFrom(base)))
}

func underlay(name, cidr, gateway, vlan string) *kubeovnv1.Subnet {
	return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, Gateway: gateway, Vlan: vlan}}
}

// localnets waits until the localnet ports have these names, networks and tags.
func (n *network) localnets(want ...string) {
	n.Helper()
	n.Rows("Logical_Switch_Port", func(row nbtest.Row) string {
		if row["type"] != "localnet" {
			return ""
		}
		return fmt.Sprint(row["name"], " ", row["options"].(map[string]string)["network_name"], " ", row["tag_request"])
	}, want...)
}

func TestAnUnderlaySubnetHasALocalnetPortAndNoRouterPort(t *testing.T) {
	n := start(t)
	s := underlay("lab", "10.30.0.0/29,fd00:30::/125", "10.30.0.6,fd00:30::6", "v")
	n.Create(s)
	if c := n.condition("lab", kubeovnv1.ConditionReady, metav1.ConditionFalse); c.Reason != kubeovnv1.ReasonWaiting || !strings.Contains(c.Message, "Vlan v does not exist") {
		t.Errorf("without its Vlan the subnet is %s: %s", c.Reason, c.Message)
	}
	v := n.vlan("v", 30)
	n.condition("lab", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.localnets("localnet.lab net1 30")
	n.rows("Logical_Router_Port", "name", "ovn-cluster-join", "ovn-cluster-ovn-default")

	_, err := n.process.Allocator.Allocate("a.ns", ipam.Request{Subnet: "lab"})
	n.Must(err)
	n.Get(s)
	n.Change(s, func() { s.Spec.Vlan = "" })
	if c := n.condition("lab", kubeovnv1.ConditionValidated, metav1.ConditionFalse); c.Reason != validation.ReasonAddressesInUse {
		t.Errorf("an underlay subnet in use becomes an overlay subnet: %s: %s", c.Reason, c.Message)
	}
	n.localnets("localnet.lab net1 30")
	other := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: kubeovnv1.VlanSpec{ID: 30, Provider: "net2"}}
	n.Create(other)
	n.validate(other, nil)
	n.Change(s, func() { s.Spec.Vlan = "other" })
	n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "the subnet is in ProviderNetwork net1, and its addresses are in use")
	n.localnets("localnet.lab net1 30")
	n.Change(s, func() { s.Spec.Vlan = "missing" })
	n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "there is no Vlan missing, and addresses of the subnet are in use in ProviderNetwork net1")
	if got := n.subnet("lab").Status.ValidatedSpec.Vlan; got != "v" {
		t.Errorf("the last valid Vlan is %s", got)
	}
	n.vlan("same", 31)
	n.Change(s, func() { s.Spec.Vlan = "same" })
	n.localnets("localnet.lab net1 31")
	n.Change(s, func() { s.Spec.Vlan = "v" })
	n.condition("lab", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.localnets("localnet.lab net1 30")

	n.Change(v, func() { v.Spec.ID = 0 })
	n.validate(v, nil)
	n.localnets("localnet.lab net1 []")
	n.process.Allocator.Release("a.ns")
	n.Change(s, func() { s.Spec.Vlan = "other" })
	n.localnets("localnet.lab net2 30")
}

func TestNodesReportGatewaysThatDoNotAnswer(t *testing.T) {
	n := start(t)
	n.vlan("v", 30)
	s := underlay("lab", "10.30.0.0/24,fd00:30::/64", "10.30.0.254,fd00:30::fe", "v")
	n.Create(s)
	n.Says(s, kubeovnv1.ConditionGatewayAnswers, metav1.ConditionTrue)
	node := n.node("n1", "192.0.2.1")
	n.Get(node)
	n.provider()
	key := kubeovnv1.ProviderKey("net1", kubeovnv1.ProviderSilentGateways)
	report := func(value string) {
		n.Change(node, func() { node.Annotations = map[string]string{key: value} })
	}
	report("other/10.30.0.254,lab/192.0.2.66,lab/text,lab,lab/10.30.0.254")
	n.Says(s, kubeovnv1.ConditionGatewayAnswers, metav1.ConditionFalse, "gateway 10.30.0.254 does not answer; new pods wait on 1 nodes: n1")
	n.Event(s, eventsv1.Event{Reason: kubeovnv1.ReasonGatewayNotAnswering, Note: "gateway 10.30.0.254 does not answer"})
	n.condition("lab", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	report("lab/10.30.0.254,lab/fd00:30::fe")
	n.Says(s, kubeovnv1.ConditionGatewayAnswers, metav1.ConditionFalse, "gateway 10.30.0.254,fd00:30::fe does not answer")
	report("")
	n.Says(s, kubeovnv1.ConditionGatewayAnswers, metav1.ConditionTrue)
	report("lab/192.0.2.66") // not a gateway of the subnet
	report("lab/fd00:30::fe")
	n.Says(s, kubeovnv1.ConditionGatewayAnswers, metav1.ConditionFalse, "gateway fd00:30::fe does not answer")
	n.Change(node, func() { // of another network
		node.Annotations = map[string]string{kubeovnv1.ProviderKey("net2", kubeovnv1.ProviderSilentGateways): "lab/10.30.0.254"}
	})
	n.Says(s, kubeovnv1.ConditionGatewayAnswers, metav1.ConditionTrue)
	report("lab/fd00:30::fe")
	n.Says(s, kubeovnv1.ConditionGatewayAnswers, metav1.ConditionFalse)
	pn := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}}
	n.Get(pn)
	n.Change(pn, func() { pn.Spec.ExcludeNodes = []string{"n1"} })
	report("lab/10.30.0.254") // of a node that the network does not select
	n.Says(s, kubeovnv1.ConditionGatewayAnswers, metav1.ConditionTrue)
	n.Rests("subnet")
	passes := n.Reconciles("subnet")
	report("missing/10.30.0.254,join/10.30.0.254") // not of subnets with a check
	n.Rests("subnet")
	if now := n.Reconciles("subnet"); now > passes+1 { // one for the subnet of the former report
		t.Errorf("a report about subnets without a check causes %d passes", now-passes)
	}
	n.Change(pn, func() { pn.Spec.ExcludeNodes = nil })
	report("lab/fd00:30::fe")
	n.Says(s, kubeovnv1.ConditionGatewayAnswers, metav1.ConditionFalse, "gateway fd00:30::fe does not answer")
	n.Delete(node)
	n.Says(s, kubeovnv1.ConditionGatewayAnswers, metav1.ConditionTrue)
	n.Get(s)
	n.Change(s, func() { s.Spec.DisableGatewayCheck = true })
	n.Eventually(func() string {
		if n.Get(s); apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionGatewayAnswers) != nil {
			return "the condition of a subnet without the check exists"
		}
		return ""
	})
}

func TestASubnetOfAConflictingVlanWaits(t *testing.T) {
	n := start(t)
	n.host("n1", "10.30.0.3") // nodes may be on the same physical network
	v := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VlanSpec{ID: 30, Provider: "net1"}}
	n.Create(v)
	n.validate(v, validation.VlanConflict(30, "net1", "older"))
	n.Create(underlay("lab", "10.30.0.0/24", "10.30.0.254", "v"))
	if c := n.condition("lab", kubeovnv1.ConditionReady, metav1.ConditionFalse); !strings.Contains(c.Message, "Vlan v is not valid: Vlan older has id 30") {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
	if n.process.Allocator.HasSubnet("lab") {
		t.Error("pods get addresses of a subnet without a network")
	}
	n.validate(v, nil)
	n.condition("lab", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.Change(v, func() { v.Spec.ID = 31 })
	n.validate(v, validation.VlanConflict(31, "net1", "younger"))
	lab := n.subnet("lab")
	n.Change(lab, func() { lab.Spec.MTU = 1400 })
	n.Ready(lab)
	n.localnets("localnet.lab net1 30")
	// An overlapping subnet on the same Vlan, which is younger, is not applied.
	n.Create(underlay("other", "10.30.0.128/25", "10.30.0.129", "v"))
	n.condition("other", kubeovnv1.ConditionValidated, metav1.ConditionFalse)
}
