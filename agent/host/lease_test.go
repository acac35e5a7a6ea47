// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// lease returns the node's Lease as a gateway; an empty one if it does not exist.
func leaseOf(n *agenttest.Node) *coordinationv1.Lease {
	n.Helper()
	o := &coordinationv1.Lease{}
	err := n.API.Get(n.Context(), client.ObjectKey{Namespace: n.Options.Namespace, Name: gateway.LeasePrefix + agenttest.NodeName}, o)
	must.Succeed(n.TB, client.IgnoreNotFound(err))
	return o
}

func TestGatewayRenewsItsLease(t *testing.T) {
	n := agenttest.Serving(t)
	lease := func() *coordinationv1.Lease { return leaseOf(n) }
	if lease().Spec.RenewTime != nil {
		t.Fatal("a node that is no gateway has a Lease")
	}
	renews := func() {
		n.Helper()
		before := lease().Spec.RenewTime
		n.Eventually("the Lease is renewed", func() bool {
			now := lease().Spec.RenewTime
			return now != nil && (before == nil || now.After(before.Time))
		})
	}
	n.Change("ovn-default", func(s *v1.SubnetSpec) { s.GatewayType, s.GatewayNode = v1.GatewayCentralized, agenttest.NodeName })
	renews()
	renews()
	if l := lease(); len(l.OwnerReferences) != 1 || l.OwnerReferences[0].Name != agenttest.NodeName || *l.Spec.LeaseDurationSeconds != 8 {
		t.Errorf("the Lease is %+v", l)
	}

	must.Succeed(t, n.Agent.Signal(syscall.SIGTERM))
	_ = n.Agent.Wait()
	if l := lease(); *l.Spec.LeaseDurationSeconds != 20 {
		t.Errorf("an agent that ends in good order asks for %d s", *l.Spec.LeaseDurationSeconds)
	}
	n.StartAgent()
	n.WaitReady()
	renews()

	n.Database.Kill() // the node's data path is down
	n.Eventually("readiness notices", func() bool { return n.Health("/readyz") != 200 })
	n.StartDatabase()
	n.WaitReady()
	renews()

	must.Succeed(t, n.VSwitchd.Signal(syscall.SIGSTOP)) // its rows in the database stay
	expires(n)
	if n.Health("/readyz") == 200 {
		t.Error("the agent is ready while ovs-vswitchd does not answer")
	}
	must.Succeed(t, n.VSwitchd.Signal(syscall.SIGCONT))
	n.WaitReady()
	renews()
	n.VSwitchd.Kill() // its PID file and socket stay
	expires(n)
	n.StartVSwitchd()
	renews()

	n.Change("ovn-default", func(s *v1.SubnetSpec) { s.GatewayType, s.GatewayNode = v1.GatewayDistributed, "" })
	n.Eventually("the Lease is given up", func() bool { return lease().Spec.RenewTime == nil })
}

// expires fails the test if the Lease is renewed. One renewal may have begun before.
func expires(n *agenttest.Node) {
	n.Helper()
	seen := map[string]bool{}
	eventually.Stays(n.TB, 4*gateway.RenewEvery, func() string {
		seen[leaseOf(n).Spec.RenewTime.String()] = true
		if len(seen) > 2 {
			return "a node whose ovs-vswitchd does not answer renews its Lease"
		}
		return ""
	})
}

// TestNodesOfAVpcRenewTheirLeases follows what the status of a Vpc says: its node renews, its standby as well, and others give up.
func TestNodesOfAVpcRenewTheirLeases(t *testing.T) {
	n := agenttest.Serving(t)
	vpc := &v1.Vpc{}
	vpc.Name = "blue"
	must.Succeed(t, n.API.Create(t.Context(), vpc))
	t.Cleanup(func() {
		if err := n.API.Delete(context.Background(), vpc); err != nil {
			t.Error(err)
		}
	})
	carry := func(active, standby string) {
		t.Helper()
		base := vpc.DeepCopy()
		vpc.Status.Transit = &v1.VpcTransit{Node: active, Standby: standby}
		must.Succeed(t, n.API.Status().Patch(t.Context(), vpc, client.MergeFrom(base)))
	}
	renews := func() {
		t.Helper()
		before := leaseOf(n).Spec.RenewTime
		n.Eventually("the Lease is renewed", func() bool {
			now := leaseOf(n).Spec.RenewTime
			return now != nil && (before == nil || now.After(before.Time))
		})
	}
	gone := func() {
		t.Helper()
		n.Eventually("the Lease is given up", func() bool { return leaseOf(n).Spec.RenewTime == nil })
	}
	carry(agenttest.NodeName, "other")
	renews()
	carry("other", agenttest.NodeName)
	renews()
	carry("other", "third")
	gone()

	// A restarted agent whose node is no longer a gateway releases its Lease. An expired Lease would keep the node from being chosen
	// again.
	carry(agenttest.NodeName, "other")
	renews()
	n.Agent.Kill()
	carry("other", "third")
	if leaseOf(n).Spec.RenewTime == nil {
		t.Fatal("an agent that was killed has given up its Lease")
	}
	n.StartAgent()
	n.WaitReady()
	gone()

	// While the data path is down, the Lease is left to expire.
	carry(agenttest.NodeName, "other")
	renews()
	n.Database.Kill()
	n.Eventually("readiness notices", func() bool { return n.Health("/readyz") != 200 })
	carry("other", "third")
	eventually.Stays(t, 3*gateway.RenewEvery, func() string {
		if leaseOf(n).Spec.RenewTime == nil {
			return "a node that does not serve has given up its Lease"
		}
		return ""
	})
	n.StartDatabase()
	n.WaitReady()
	gone()
}
