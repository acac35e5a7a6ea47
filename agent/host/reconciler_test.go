// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestNodeRoutesAndRestores(t *testing.T) {
	n := agenttest.Serving(t)
	agenttest.WantRoutes(n, true, "10.16.0.0/16", "fd00:10:16::/112")

	subnet := &v1.Subnet{}
	subnet.Name, subnet.Spec.CIDRBlock = "more", "10.17.0.0/16"
	n.Create(subnet)
	other := &v1.Subnet{}
	other.Name, other.Spec.CIDRBlock, other.Spec.Vpc = "custom", "10.18.0.0/16", "custom"
	n.Create(other)
	agenttest.WantRoutes(n, true, "10.17.0.0/16")
	agenttest.WantRoutes(n, false, "10.18.0.0/16")

	t.Run("a route and an address that someone deletes come back", func(t *testing.T) {
		n := n.In(t)
		must.Succeed(t, netlink.RouteDel(agenttest.RouteTo(n, "10.17.0.0/16")))
		agenttest.WantRoutes(n, true, "10.17.0.0/16")
		link, err := netlink.LinkByName(host.JoinInterface)
		must.Succeed(t, err)
		address, err := netlink.ParseAddr("100.64.0.2/16")
		must.Succeed(t, err)
		must.Succeed(t, netlink.AddrDel(link, address))
		n.Eventually("the address is back", func() bool { return agenttest.HasAddress(host.JoinInterface, "100.64.0.2/16") })
		agenttest.WantRoutes(n, true, "10.16.0.0/16", "10.17.0.0/16", "fd00:10:16::/112")
	})
	t.Run("routes of others stay", func(t *testing.T) {
		n := n.In(t)
		must.Succeed(t, agenttest.AddRoute("10.19.0.0/16", agenttest.Outside[0].Addr()))
		t.Cleanup(func() { _ = netlink.RouteDel(&netlink.Route{Dst: agenttest.CIDR("10.19.0.0/16")}) })
		must.Succeed(t, n.API.Delete(t.Context(), subnet))
		agenttest.WantRoutes(n, false, "10.17.0.0/16")
		if found := agenttest.RouteTo(n, "10.19.0.0/16"); found == nil {
			t.Error("the agent deleted a route that is not its own")
		}
	})
	t.Run("addresses added for Services and to the node are followed", func(t *testing.T) {
		n := n.In(t)
		const cidr = "10.201.0.0/16"
		more := &networkingv1.ServiceCIDR{}
		more.Name, more.Spec.CIDRs = "more", []string{cidr}
		must.Succeed(t, n.API.Create(t.Context(), more))
		n.Eventually("the CIDR is in the table", func() bool { return strings.Contains(ruleset(t), cidr) })
		rests(n)
		more.Finalizers = nil // no controller removes them here
		must.Succeed(t, errors.Join(n.API.Update(t.Context(), more), n.API.Delete(t.Context(), more)))
		n.Eventually("the CIDR is no longer in the table", func() bool { return !strings.Contains(ruleset(t), cidr) })

		const address = "192.0.2.77"
		object := &corev1.Node{}
		must.Succeed(t, n.API.Get(t.Context(), client.ObjectKey{Name: agenttest.NodeName}, object))
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		must.Succeed(t, n.API.Status().Update(t.Context(), object))
		n.Eventually("the node's address is in the table", func() bool { return strings.Contains(ruleset(t), address) })
	})
	t.Run("everything comes back after ovs-vswitchd restarts", func(t *testing.T) {
		n := n.In(t)
		n.VSwitchd.Kill()
		must.Succeed(t, sandbox.Remove(host.JoinInterface)) // as a regular shutdown does
		n.Eventually("readiness notices", func() bool { return n.Health("/readyz") != http.StatusOK })
		n.StartVSwitchd()
		n.Eventually("ovn0 is back with its addresses", func() bool { return agenttest.HasAddress(host.JoinInterface, "100.64.0.2/16") })
		agenttest.WantRoutes(n, true, "10.16.0.0/16", "fd00:10:16::/112")
		n.WaitReady()
	})
	t.Run("the agent continues after ovsdb-server restarts", func(t *testing.T) {
		n := n.In(t)
		n.Database.Kill()
		n.Eventually("STATUS notices", func() bool { return n.Health("/readyz") != http.StatusOK })
		n.StartDatabase()
		n.WaitReady()
		n.Eventually("the test is connected again", n.OVS.Connected)
		c := n.Sandbox(n.Pod("after-restart", 200), agenttest.NewID())
		c.MustAdd()
		c.MustDel()
	})
}

// rests waits until the host reconciler has had no pass for two seconds. The kernel reports the end of changes that late, such as the end
// of duplicate address detection. A pending pass would hide a missing event.
func rests(n *agenttest.Node) {
	n.Helper()
	last, since := 0.0, time.Now()
	n.Eventually("the node's network rests", func() bool {
		passes := 0.0
		for _, m := range n.Metric("controller_runtime_reconcile_total").GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "controller" && l.GetValue() == "host" {
					passes += m.GetCounter().GetValue()
				}
			}
		}
		if passes != last {
			last, since = passes, time.Now()
		}
		return time.Since(since) > 2*time.Second
	})
}
