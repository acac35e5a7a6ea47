// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// largestKey sets the largest tunnel key of a datapath, as ovn-northd does.
func (n *network) largestKey(key string) {
	n.Helper()
	n.DiffersFromFresh("ovn-northd, and no controller, writes the option")
	n.Database.Transact(nbtest.Op{"op": "mutate", "table": "NB_Global", "where": []any{}, "mutations": []any{
		[]any{"options", "delete", []any{"set", []any{"max_tunid"}}},
		[]any{"options", "insert", nbtest.Map(map[string]string{"max_tunid": key})},
	}})
}

// The condition PortsAvailable follows the encapsulations of the chassis and the holders of addresses.
func TestASubnetReportsThatItsSwitchIsFull(t *testing.T) {
	n := startMeasured(t)
	n.ready("small", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"})
	n.ready("wide", kubeovnv1.SubnetSpec{CIDRBlock: "10.32.0.0/13"})
	says := func(status metav1.ConditionStatus, text string) {
		t.Helper()
		n.Says(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "wide"}}, kubeovnv1.ConditionPortsAvailable, status, text)
	}
	says(metav1.ConditionTrue, "can have 32767 ports")
	n.largestKey("4095") // as ovn-northd writes it for VXLAN
	says(metav1.ConditionTrue, "can have 2047 ports")
	holder := func(i int) string { return fmt.Sprintf("pod%d.shop", i) }
	last := 0
	for ; ; last++ {
		if _, err := n.process.Allocator.Allocate(holder(last), ipam.Request{Subnet: "wide"}); err != nil {
			break
		}
	}
	if last != 2046 { // the port to the router is the other one
		t.Errorf("%d holders fit", last)
	}
	says(metav1.ConditionFalse, "all 2047 ports")
	n.Event(n.subnet("wide"), eventsv1.Event{Reason: kubeovnv1.ReasonSwitchFull, Note: "create another subnet"})
	n.Measures(2047, "kiln_subnet_ports", "subnet_name", "wide")
	n.Measures(2047, "kiln_subnet_ports_limit", "subnet_name", "wide")
	n.process.Allocator.Release(holder(0))
	says(metav1.ConditionTrue, "can have 2047 ports")
	if c := apimeta.FindStatusCondition(n.subnet("small").Status.Conditions, kubeovnv1.ConditionPortsAvailable); c != nil {
		t.Errorf("a subnet whose addresses all fit has the condition %+v", *c)
	}
}

func TestSubnetsAndVpcsWaitForADatapath(t *testing.T) {
	n := start(t)
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.condition("join", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.largestKey("4") // the router, these two switches and another datapath
	n.ready("first", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"})
	second := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.21.0.0/24"}}
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	n.Create(second)
	n.Create(vpc)
	for _, o := range []client.Object{second, vpc} {
		n.Says(o, kubeovnv1.ConditionReady, metav1.ConditionFalse, kubeovnv1.ReasonWaiting, "delete Subnets or Vpcs")
	}
	n.Delete(n.subnet("first"))
	n.Eventually(func() string { // one of them gets the datapath
		ready := 0
		for _, o := range []client.Object{second, vpc} {
			n.Get(o)
		}
		for _, conditions := range [][]metav1.Condition{second.Status.Conditions, vpc.Status.Conditions} {
			if apimeta.IsStatusConditionTrue(conditions, kubeovnv1.ConditionReady) {
				ready++
			}
		}
		if ready != 1 {
			return fmt.Sprintf("%d of two objects have the last datapath", ready)
		}
		return ""
	})
	n.largestKey("16711680") // the last VXLAN chassis left
	n.Ready(second, vpc)
}
