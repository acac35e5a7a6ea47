// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/internal/testing/gate"
)

// work counts the operations of the controllers so far.
type work struct{ nodePatches, ipPosts, subnetPatches, transactions, nodeReconciles, subnetReconciles, rows int }

func (n *network) work() work {
	n.Helper()
	w := work{
		nodePatches:      n.process.Writes(http.MethodPatch, "/nodes/"),
		ipPosts:          n.process.Writes(http.MethodPost, "/ips"),
		subnetPatches:    n.process.Writes(http.MethodPatch, "/subnets/"),
		transactions:     n.process.Transactions(),
		nodeReconciles:   n.Reconciles("node"),
		subnetReconciles: n.Reconciles("subnet"),
	}
	for _, rows := range n.Database.Dump() {
		w.rows += len(rows)
	}
	return w
}

func (w work) since(o work) work {
	return work{
		w.nodePatches - o.nodePatches, w.ipPosts - o.ipPosts, w.subnetPatches - o.subnetPatches, w.transactions - o.transactions,
		w.nodeReconciles - o.nodeReconciles, w.subnetReconciles - o.subnetReconciles, w.rows - o.rows,
	}
}

// TestTheCostOfANodeDoesNotGrow counts patches, reconciliations, rows and transactions: the cost of a node must not depend on the number of
// nodes or subnets.
func TestTheCostOfANodeDoesNotGrow(t *testing.T) {
	gate.Skip(t, gate.Long)
	n := startMeasured(t)
	n.condition("join", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	for i := range 20 {
		name := fmt.Sprintf("s%d", i)
		n.Create(&kubeovnv1.Subnet{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       kubeovnv1.SubnetSpec{CIDRBlock: fmt.Sprintf("10.%d.0.0/16", 120+i)},
		})
	}
	for i := range 20 {
		n.condition(fmt.Sprintf("s%d", i), kubeovnv1.ConditionReady, metav1.ConditionTrue)
	}
	n.idle() // their usage is reported a moment later
	there := 0
	for _, nodes := range []int{controllertest.Size(25, 50), controllertest.Size(75, 200)} {
		before, begun := n.work(), time.Now()
		n.join(there, there+nodes)
		there += nodes
		n.Eventually(func() string { // a node is patched before its reconciliation is counted
			if ended := n.Reconciles("node") - before.nodeReconciles; ended < nodes {
				return fmt.Sprintf("%d of %d reconciliations have ended", ended, nodes)
			}
			return ""
		})
		got := n.work().since(before)
		t.Logf("%d nodes: %+v", nodes, got)
		// Writes of a reconciliation cause no further reconciliation.
		if got.nodePatches != nodes || got.ipPosts != nodes || got.nodeReconciles != nodes {
			t.Errorf("%d nodes took %d patches of nodes, %d IP objects and %d reconciliations, want 1 of each",
				nodes, got.nodePatches, got.ipPosts, got.nodeReconciles)
		}
		// Rows of a node: its port, its two address sets, two policies to leave through the node, two for shared addresses and one to reach it.
		if got.rows != 8*nodes || got.transactions > nodes {
			t.Errorf("%d nodes took %d rows in %d transactions, want 8 rows of each", nodes, got.rows, got.transactions)
		}
		// The usage of the join subnet is written once a second at most.
		if seconds := int(time.Since(begun).Seconds()); got.subnetReconciles > seconds+4 || got.subnetPatches > seconds+4 {
			t.Errorf("%d nodes took %d reconciliations of subnets and %d patches in %d s", nodes, got.subnetReconciles, got.subnetPatches, seconds)
		}
	}
}

// join creates nodes with their addresses, as kubelets do, and waits until they are connected.
func (n *network) join(from, to int) {
	n.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for i := from; i < to; i++ {
		group.Go(func() error {
			return n.Client.Create(n.Context(), &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)},
				Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
					{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.%d.%d", i/250, 1+i%250)},
				}},
			})
		})
	}
	n.Must(group.Wait())
	n.Eventually(func() string {
		var nodes corev1.NodeList
		n.Must(n.Client.List(n.Context(), &nodes))
		for i := range nodes.Items {
			if network, err := kubeovnv1.ParsePodNetwork(nodes.Items[i].Annotations); err != nil || !network.Allocated {
				return fmt.Sprintf("node %s is not connected (%v)", nodes.Items[i].Name, err)
			}
		}
		return ""
	})
}
