// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"context"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestMissingPorts(t *testing.T) {
	n := agenttest.Serving(t)
	for name, test := range map[string]func(*testing.T, *agenttest.Node){
		"the port of a running pod is added again, with an event": portRestored,
		"a DEL is not undone": deletedPortStays,
		"the port of a replaced container is not added again":                replacedPortStays,
		"a port that was deleted while the agent did not run is added again": portRestoredAfterRestart,
		"each interface of a pod gets its own port again":                    portsOfSeveralNetworks,
		"the node reaches probes through a port that was added again":        probesOfRestoredPort,
		"a port whose network does not fit its subnet is reported":           unfitPortReported,
		"a port that another program has replaced is reported":               replacedByAnotherProgram,
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

// lostWhileDown detaches ports while the agent does not run, which has written a note of each before.
func lostWhileDown(n *agenttest.Node, f func(), names ...string) {
	n.Helper()
	restart := func(f func()) {
		n.Agent.Kill()
		f()
		n.StartAgent()
		n.WaitReady()
	}
	restart(func() {}) // it compares the ports at its start
	n.Eventually("the notes on the veths", func() bool {
		return !slices.ContainsFunc(names, func(name string) bool { return n.Link(name).Attrs().Alias == "" })
	})
	restart(func() {
		f()
		for _, name := range names {
			n.Detach(name)
		}
	})
}

func portRestoredAfterRestart(t *testing.T, n *agenttest.Node) {
	c := n.Added(n.Pod("lost-while-down", 304))
	tenant := n.Tenant("lost-tenant", 305)
	name, ids := c.Port()
	tenantName, tenantIDs := tenant.Port()
	lostWhileDown(n, func() {}, name, tenantName)
	hasSamePort(c, name, ids)
	hasSamePort(tenant, tenantName, tenantIDs)
	must.Succeed(t, c.Check())
}

func portsOfSeveralNetworks(t *testing.T, n *agenttest.Node) {
	pod := n.Pod("several", 306)
	const provider = "net1.default.ovn"
	cidr := netip.MustParsePrefix("10.77.0.0/24")
	subnet := agenttest.SubnetOf("net1", cidr.String())
	subnet.Spec.Provider, subnet.Spec.Gateway = provider, "10.77.0.1"
	n.Create(subnet)
	n.WriteNetwork(pod, v1.PodNetwork{
		Provider: provider, UID: pod.UID, Allocated: true, Routed: true, Addresses: []netip.Addr{netip.MustParseAddr("10.77.0.5")},
		MAC: net.HardwareAddr{0x02, 0, 0, 0x77, 0, 5}, CIDRs: []netip.Prefix{cidr}, Gateways: []netip.Addr{netip.MustParseAddr("10.77.0.1")},
		LogicalSwitch: subnet.Name, LogicalRouter: v1.DefaultVpc,
	})
	c := n.Added(pod)
	name, ids := c.Port()
	list := must.Value(libcni.ConfListFromBytes(regexp.MustCompile(`("provider": *)"ovn"`).ReplaceAll(n.Conflist(), []byte(`$1"`+provider+`"`))))
	runtime := c.Runtime()
	runtime.IfName = "net1"
	_, err := c.CNI.AddNetworkList(t.Context(), list, runtime)
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, c.CNI.DelNetworkList(context.Background(), list, runtime)) })
	second, secondIDs := "", map[string]string(nil)
	for other, iface := range n.Interfaces() {
		if iface.ExternalIDs["iface-id"] == "several.default."+provider {
			second, secondIDs = other, iface.ExternalIDs
		}
	}
	if second == "" {
		t.Fatal("the second interface has no port")
	}
	lostWhileDown(n, func() {}, name, second)
	hasSamePort(c, name, ids)
	hasSamePort(c, second, secondIDs)
}

// probeRoutes returns how many routes of probes lead to a pod.
func probeRoutes(c *agenttest.Container) (count int) {
	c.Helper()
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: 76, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	must.Succeed(c.TB, err)
	for _, route := range routes {
		if route.Dst != nil && route.Dst.IP.String() == strings.Split(c.Pod.Annotations["ovn.kubernetes.io/ip_address"], ",")[0] {
			count++
		}
	}
	return count
}

func probesOfRestoredPort(t *testing.T, n *agenttest.Node) {
	c := n.Tenant("probed", 307)
	name, ids := c.Port()
	n.Eventually("the routes of probes", func() bool { return probeRoutes(c) == 2 })
	n.Detach(name)
	n.Eventually("without a port there are no routes", func() bool { return probeRoutes(c) == 0 })
	hasSamePort(c, name, ids)
	n.Eventually("the routes of probes exist again", func() bool { return probeRoutes(c) == 2 })
}

// unfitPortReported changes the network in the annotations, so that the agent cannot know which port the container had.
func unfitPortReported(t *testing.T, n *agenttest.Node) {
	c := n.Added(n.Pod("unfit", 308))
	name, _ := c.Port()
	lostWhileDown(n, func() { n.AnnotateIn(c.Pod, 308, "nowhere") }, name)
	n.Change("nowhere-net", func(s *v1.SubnetSpec) { s.Vpc = "elsewhere" })
	n.Eventually("the event", func() bool { return reported(c, v1.ReasonPortMissing) })
	n.Eventually("the metric", func() bool { return missing(n) == 1 })
	c.HasNoPort()
	c.MustDel()
	n.Eventually("the metric after the end of the container", func() bool { return missing(n) == 0 })
}

// missing returns the number of ports that are missing.
func missing(n *agenttest.Node) float64 {
	family := n.Metric("kiln_pod_ports_missing")
	if family == nil {
		return -1
	}
	return family.GetMetric()[0].GetGauge().GetValue()
}

// replacedByAnotherProgram moves the veths of two pods to another bridge. The port of the first pod is added again when the other one is deleted; the
// second pod is deleted, while only the record on its veth names it.
func replacedByAnotherProgram(t *testing.T, n *agenttest.Node) {
	c, deleted := n.Added(n.Pod("moved", 309)), n.Added(n.Pod("moved-and-deleted", 310))
	name, ids := c.Port()
	second, _ := deleted.Port()
	n.Agent.Kill()
	n.StartAgent() // records the ports at its start
	n.WaitReady()
	n.Eventually("the record on the veths", func() bool {
		return strings.Contains(n.Link(name).Attrs().Alias, c.ID) && strings.Contains(n.Link(second).Attrs().Alias, deleted.ID)
	})
	n.Agent.Kill()
	n.VSCtl("add-br", "other", "--", "del-port", "br-int", name, "--", "add-port", "other", name, "--", "del-port", "br-int", second, "--", "add-port", "other", second)
	t.Cleanup(func() { n.VSCtl("--if-exists", "del-br", "other") })
	n.StartAgent()
	n.WaitReady()
	n.Eventually("both ports are missing", func() bool { return missing(n) == 2 })
	n.Eventually("the event", func() bool { return reported(c, v1.ReasonPortMissing) })
	must.Succeed(t, n.API.Delete(t.Context(), deleted.Pod, client.GracePeriodSeconds(0)))
	n.Eventually("the port of the deleted pod is not missing", func() bool { return missing(n) == 1 })
	n.VSCtl("del-port", "other", name)
	hasSamePort(c, name, ids)
	n.Eventually("no port is missing", func() bool { return missing(n) == 0 })
	must.Succeed(t, c.Check())
}
