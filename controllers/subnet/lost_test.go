// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/validation"
)

// loseDatabase restarts the controllers with an empty northbound database.
func (n *network) loseDatabase() {
	n.Helper()
	n.process.Stop()
	n.Database = nbtest.Start(n.T)
	n.run()
}

// TestTheLastValidSpecSurvivesALostDatabase: otherwise the pods of an invalid subnet would have no switch, and its ACLs would open.
func TestTheLastValidSpecSurvivesALostDatabase(t *testing.T) {
	n := start(t)
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{
		CIDRBlock: "10.20.0.0/24,fd00:10:20::/64", Private: true,
		ACLs: []kubeovnv1.ACL{{Direction: "to-lport", Priority: 1000, Match: "ip4.src == 192.0.2.0/24", Action: "drop"}},
	}}
	n.Create(s)
	n.Ready(s)
	have := func() []string { return n.column("ACL", "match") }
	before := have()
	networks := []string{"10.16.0.1/16 fd00:10:16::1/64", "10.20.0.1/24 fd00:10:20::1/64", "100.64.0.1/16 fd00:100:64::1/112"}
	n.rows("Logical_Router_Port", "networks", networks...)

	n.Change(s, func() { s.Spec.ACLs[0].Match, s.Spec.Private = "ip4.src = 192.0.2.0/24", false })
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, validation.ReasonACLInvalid, "write == to compare; the last valid spec stays applied")
	n.loseDatabase()
	n.rows("Logical_Switch", "name", "join", "ovn-default", "s")
	n.rows("Logical_Router_Port", "networks", networks...)
	n.Eventually(func() string {
		if got := have(); strings.Join(got, "\n") != strings.Join(before, "\n") {
			return "the ACLs are\n" + strings.Join(got, "\n") + "\nwant\n" + strings.Join(before, "\n")
		}
		return ""
	})
	n.RestoresRows("Subnet//s") // rows that another client deletes come back as well
}

// TestAnAppliedSubnetKeepsItsCIDRAfterALostDatabase: the rows that show which of two subnets is applied are lost, too.
func TestAnAppliedSubnetKeepsItsCIDRAfterALostDatabase(t *testing.T) {
	n := start(t)
	older := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a-older"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"}}
	younger := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "b-younger"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.21.0.0/24"}}
	n.Create(older, younger)
	n.Ready(older, younger)
	n.Change(older, func() {
		older.Spec.CIDRBlock, older.Spec.Gateway, older.Spec.ExcludeIPs = "10.21.0.0/16", "10.21.0.1", nil
	})
	n.Says(older, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "subnet b-younger")
	n.loseDatabase()
	n.rows("Logical_Router_Port", "networks",
		"10.16.0.1/16 fd00:10:16::1/64", "10.20.0.1/24", "10.21.0.1/24", "100.64.0.1/16 fd00:100:64::1/112")
	n.Says(older, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "subnet b-younger")
	n.Ready(younger)

	third := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "third"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/25"}}
	n.Create(third) // overlaps with the last valid spec of the older subnet, whose current spec is elsewhere
	n.Says(third, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "subnet a-older")
	n.Change(older, func() { older.Spec.CIDRBlock, older.Spec.Gateway = "10.22.0.0/24", "10.22.0.1" })
	n.Ready(older, third)
}

// TestASubnetWithoutAGatewayNodeIsNotReady: kubectl ko status and diagnose show the condition Ready.
func TestASubnetWithoutAGatewayNodeIsNotReady(t *testing.T) {
	n := start(t)
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovnv1.SubnetSpec{
		CIDRBlock: "10.20.0.0/24", GatewayType: kubeovnv1.GatewayCentralized, GatewayNode: "worker-9",
	}}
	n.Create(s)
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, kubeovnv1.ReasonWaiting, "no gateway node is chosen yet")
	set := func(status metav1.ConditionStatus, reason, message string) { // as the controller of gateways does
		t.Helper()
		n.Get(s)
		k8s.SetConditions(&s.Status.Conditions, s.Generation, metav1.Condition{
			Type: kubeovnv1.ConditionGatewayReady, Status: status, Reason: reason, Message: message,
		})
		n.Must(n.Client.Status().Update(n.Context(), s))
	}
	set(metav1.ConditionFalse, "NoActiveGatewayFound", "no node of gatewayNode exists: nothing leaves the subnet")
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, "NoActiveGatewayFound", "nothing leaves the subnet")
	n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionTrue)
	set(metav1.ConditionTrue, "ReconcileCentralizedGatewaySuccess", "traffic leaves through worker-9")
	n.Ready(s)
}
