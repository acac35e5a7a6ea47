// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/internal/testing/gate"
)

// TestTheCostOfASubnetDoesNotGrow counts patches, reconciliations, rows and transactions: the cost of a subnet and a VPC must not depend on
// the number of subnets, VPCs or nodes.
func TestTheCostOfASubnetDoesNotGrow(t *testing.T) {
	gate.Skip(t, gate.Long)
	n := startMeasured(t)
	n.condition("join", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	there, nodes := 0, 0
	size := controllertest.Size(30, 100)
	for _, step := range []struct{ subnets, nodes int }{{20, 0}, {size, 0}, {size, size}, {2 * size, 0}} {
		n.join(nodes, nodes+step.nodes)
		nodes += step.nodes
		n.idle()
		before := n.work()
		n.addSubnets(there, there+step.subnets)
		there += step.subnets
		n.idle()
		got := n.work().since(before)
		t.Logf("%d subnets: %+v", step.subnets, got)
		// One patch for the finalizer and defaults, one for the conditions, one for the usage.
		if got.subnetPatches > 3*step.subnets {
			t.Errorf("%d subnets took %d patches, want 3 of each at most", step.subnets, got.subnetPatches)
		}
		// Reconciliations for its creation, its defaults, its usage and its VPC, and, on a busy machine, after conflicts.
		if got.subnetReconciles > 8*step.subnets {
			t.Errorf("%d subnets took %d reconciliations, want 8 of each at most", step.subnets, got.subnetReconciles)
		}
		// Half of the subnets have their own VPC: a router, a group of load balancers, and limits: seven meters with a band each, and the row that
		// names them. Each subnet has a switch, two ports and a policy.
		if want := 4*step.subnets + (2+15)*(step.subnets/2); got.rows != want {
			t.Errorf("%d subnets took %d rows, want %d", step.subnets, got.rows, want)
		}
		// The limit if no transactions are batched: one for the subnet, two for its VPC, and one more for a subnet that came before its
		// VPC.
		if want := step.subnets + 3*(step.subnets/2); got.transactions > want {
			t.Errorf("%d subnets took %d transactions, want %d at most", step.subnets, got.transactions, want)
		}
		if got.nodeReconciles != 0 || got.nodePatches != 0 {
			t.Errorf("%d subnets took %d reconciliations of nodes and %d patches of them", step.subnets, got.nodeReconciles, got.nodePatches)
		}
	}
}

// addSubnets creates subnets. Every second one gets its own VPC.
func (n *network) addSubnets(from, to int) {
	n.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for i := from; i < to; i++ {
		group.Go(func() error {
			s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("net-%d", i)}}
			s.Spec.CIDRBlock = fmt.Sprintf("10.%d.%d.0/24", 120+i/250, i%250)
			if i%2 == 1 {
				s.Spec.Vpc = fmt.Sprintf("vpc-%d", i)
				if err := n.Client.Create(n.Context(), &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: s.Spec.Vpc}}); err != nil {
					return err
				}
			}
			return n.Client.Create(n.Context(), s)
		})
	}
	n.Must(group.Wait())
	for i := from; i < to; i++ {
		n.condition(fmt.Sprintf("net-%d", i), kubeovnv1.ConditionReady, metav1.ConditionTrue)
	}
}

// gathered is longer than the batching of usage changes, plus the delay of a busy machine.
const gathered = 3 * time.Second

// idle waits until batched work of the controllers is done: the status of the default VPC lists all of its subnets, and no subnet was
// reconciled for the time gathered.
func (n *network) idle() {
	n.Helper()
	count, since := -1, time.Now()
	n.Eventually(func() string {
		var subnets kubeovnv1.SubnetList
		n.Must(n.Client.List(n.Context(), &subnets))
		want := 0
		for i := range subnets.Items {
			if subnets.Items[i].Spec.Vpc == kubeovnv1.DefaultVpc {
				want++
			}
		}
		vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}}
		if n.Get(vpc); len(vpc.Status.Subnets) != want {
			return fmt.Sprintf("the VPC names %d subnets, want %d", len(vpc.Status.Subnets), want)
		}
		if now := n.Reconciles("subnet"); now != count {
			count, since = now, time.Now()
		}
		if time.Since(since) < gathered {
			return "subnets are being worked on"
		}
		return ""
	})
}
