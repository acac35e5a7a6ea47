// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/must"
)

func TestMissingPorts(t *testing.T) {
	n := agenttest.Serving(t)
	for name, test := range map[string]func(*testing.T, *agenttest.Node){
		"the port of a running pod is added again, with an event": portRestored,
		"a DEL is not undone": deletedPortStays,
		"the port of a replaced container is not added again":                replacedPortStays,
		"a port that was deleted while the agent did not run is added again": portRestoredAfterRestart,
	} {
		t.Run(name, func(t *testing.T) { test(t, n.In(t)) })
	}
}

// hasSamePort waits until a container has a port with its flows, and compares its record.
func hasSamePort(c *agenttest.Container, name string, ids map[string]string) {
	c.Helper()
	c.Eventually("the port exists again", func() bool { return c.Interfaces()[name].ExternalIDs["ovn-installed"] == "true" })
	have := c.Interfaces()[name].ExternalIDs
	for key, value := range ids {
		if have[key] != value {
			c.Errorf("external_ids:%s is %q, before it was %q", key, have[key], value)
		}
	}
}

// reported reports whether the agent has an event with the reason on the pod.
func reported(c *agenttest.Container, reason string) bool {
	var events corev1.EventList
	must.Succeed(c.TB, c.API.List(c.Context(), &events, client.InNamespace(c.Pod.Namespace)))
	for _, e := range events.Items {
		if e.Reason == reason && e.InvolvedObject.UID == c.Pod.UID {
			return true
		}
	}
	return false
}

func restored(n *agenttest.Node) float64 {
	family := n.Metric("kiln_pod_ports_restored_total")
	if family == nil {
		return 0
	}
	return family.GetMetric()[0].GetCounter().GetValue()
}

func portRestored(t *testing.T, n *agenttest.Node) {
	c := n.Added(n.Pod("lost-port", 300))
	name, ids := c.Port()
	before := restored(n)
	n.Detach(name)
	hasSamePort(c, name, ids)
	n.Eventually("the event", func() bool { return reported(c, v1.ReasonPortRestored) })
	if now := restored(n); now != before+1 {
		t.Errorf("%v ports were restored, before the deletion %v", now, before)
	}
	must.Succeed(t, c.Check())
}

func deletedPortStays(t *testing.T, n *agenttest.Node) {
	c := n.Sandbox(n.Pod("ended", 301), agenttest.NewID())
	c.MustAdd()
	before := restored(n)
	c.MustDel()
	other := n.Added(n.Pod("other-port", 302)) // a repair after the DEL's event shows that this event was processed
	name, ids := other.Port()
	n.Detach(name)
	hasSamePort(other, name, ids)
	c.HasNoPort()
	n.Eventually("only the other port is counted", func() bool { return restored(n) == before+1 })
}

func replacedPortStays(t *testing.T, n *agenttest.Node) {
	pod := n.Pod("replaced", 303)
	first, second := n.Added(pod), n.Sandbox(pod, agenttest.NewID())
	second.MustAdd() // removes the port of the first
	t.Cleanup(second.MustDel)
	first.HasNoPort()
	name, ids := second.Port()
	time.Sleep(2 * time.Second) // longer than the delay of repairs
	first.HasNoPort()
	n.Detach(name)
	hasSamePort(second, name, ids)
	first.HasNoPort()
}

func portRestoredAfterRestart(t *testing.T, n *agenttest.Node) {
	c := n.Added(n.Pod("lost-while-down", 304))
	tenant := n.Tenant("lost-tenant", 305)
	restart := func(f func()) {
		n.Agent.Kill()
		f()
		n.StartAgent()
		n.WaitReady()
	}
	alias := func(name string) string { return n.Link(name).Attrs().Alias }
	name, ids := c.Port()
	tenantName, tenantIDs := tenant.Port()
	restart(func() {}) // records the ports at its start
	n.Eventually("the record on the veths", func() bool {
		return strings.Contains(alias(name), c.ID) && strings.Contains(alias(tenantName), tenant.ID)
	})
	restart(func() {
		n.Detach(name)
		n.Detach(tenantName)
	})
	hasSamePort(c, name, ids)
	hasSamePort(tenant, tenantName, tenantIDs)
	must.Succeed(t, c.Check())
}
