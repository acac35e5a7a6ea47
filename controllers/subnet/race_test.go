// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/validation"
)

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
