// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestExternalGateway(t *testing.T) {
	n := agenttest.Serving(t)
	n.Router()
	edge := edge(n)
	pod := n.Sandbox(n.Pod("talker", 300), agenttest.NewID())
	pod.MustAdd()
	t.Cleanup(pod.MustDel)
	other := n.Sandbox(n.Pod("listener", 301), agenttest.NewID())
	other.MustAdd()
	t.Cleanup(other.MustDel)
	foreign := netlink.NewRule()
	foreign.Src, foreign.Priority, foreign.Table, foreign.Family = agenttest.CIDR("203.0.113.0/24"), 900, 900, netlink.FAMILY_V4
	must.Succeed(t, netlink.RuleAdd(foreign))
	t.Cleanup(func() { _ = netlink.RuleDel(foreign) })

	n.Change("ovn-default", func(s *v1.SubnetSpec) {
		s.NATOutgoing = false
		s.ExternalEgressGateway, s.PolicyRoutingPriority, s.PolicyRoutingTableID = "192.168.77.254,fd00:77::fe", 1000, 1000
	})
	n.Eventually("the rules are there", func() bool { return strings.Count(ownState(), "lookup 1000") == 2 })
	for i, beyond := range beyondEdge {
		podIP, otherIP := agenttest.AddressesOf(300)[i], agenttest.AddressesOf(301)[i]
		seen(n, pod.NS, edge, beyond.Addr(), podIP)
		seen(n, pod.NS, other.NS, otherIP, podIP)
		seen(n, nil, pod.NS, podIP, agenttest.NodeIPs[i].Addr())
	}
	t.Run("a table that loses its route, and an interface that was down, come back", func(t *testing.T) {
		n := n.In(t)
		link, err := netlink.LinkByName("eth1")
		must.Succeed(t, err)
		must.Succeed(t, netlink.LinkSetDown(link))
		must.Succeed(t, errors.Join(netlink.LinkSetUp(link), replaceAddress(link, "fd00:77::1/64")))
		n.Eventually("the routes are back", func() bool { return strings.Count(ownState(), "default via") == 2 })
		for i, beyond := range beyondEdge {
			seen(n, pod.NS, edge, beyond.Addr(), agenttest.AddressesOf(300)[i])
		}
	})
	t.Run("rules that another program deletes come back", func(t *testing.T) { // as systemd-networkd does when it starts
		n := n.In(t)
		agenttest.DeleteRules(t, 1000)
		n.Eventually("the rules are back", func() bool { return strings.Count(ownState(), "lookup 1000") == 2 })
	})
	n.Change("ovn-default", func(s *v1.SubnetSpec) { s.PolicyRoutingPriority, s.PolicyRoutingTableID = 1001, 1001 })
	n.Eventually("the table is another one", func() bool {
		state := ownState()
		return strings.Count(state, "lookup 1001") == 2 && !strings.Contains(state, "1000")
	})
	seen(n, pod.NS, edge, beyondEdge[0].Addr(), agenttest.AddressesOf(300)[0])

	n.Agent.Kill()
	n.Change("ovn-default", func(s *v1.SubnetSpec) { s.ExternalEgressGateway = "" })
	n.StartAgent()
	n.WaitReady()
	n.Eventually("nothing of it is left", func() bool { return ownState() == "" })
	if list, err := netlinksafe.RuleListFiltered(netlink.FAMILY_V4, foreign, netlink.RT_FILTER_TABLE); err != nil || len(list) != 1 {
		t.Errorf("a rule of another owner was removed: %v, %v", list, err)
	}
	const unreachable = "203.0.113.9" // in no network of the node
	n.Change("ovn-default", func(s *v1.SubnetSpec) { s.ExternalEgressGateway = unreachable })
	n.WaitReady()
	reported := func() bool {
		c := n.NetworkUnavailable()
		if c == nil || c.Status != corev1.ConditionFalse {
			t.Fatalf("one external gateway makes the condition of the node %+v", c)
		}
		return strings.Contains(c.Message, unreachable)
	}
	n.Eventually("the node's condition names the router", reported)
	// controller-runtime logs the error after the pass that wrote the condition.
	n.Eventually("the agent's log names the router", func() bool { return strings.Contains(n.Agent.Log(), unreachable) })
	n.Change("ovn-default", func(s *v1.SubnetSpec) { s.ExternalEgressGateway = "" })
	n.Eventually("nothing of that is left either", func() bool { return ownState() == "" && !reported() })
}

// beyondEdge are addresses behind the router on eth1.
var beyondEdge = []netip.Prefix{netip.MustParsePrefix("198.51.100.1/32"), netip.MustParsePrefix("2001:db8:51::1/128")}

// edge is a router on the other end of eth1.
func edge(n *agenttest.Node) ns.NetNS {
	n.Helper()
	link, err := netlink.LinkByName("eth1")
	must.Succeed(n.TB, err)
	must.Succeed(n.TB, replaceAddress(link, "fd00:77::1/64"))
	return n.Beyond("eth1-out", func(link netlink.Link) error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo),
			agenttest.AddAddresses(link, netip.MustParsePrefix("192.168.77.254/24"), netip.MustParsePrefix("fd00:77::fe/64")), agenttest.AddAddresses(lo, beyondEdge...),
			agenttest.AddRoute(agenttest.PodCIDRs[0].String(), netip.MustParseAddr("192.168.77.1")),
			agenttest.AddRoute(agenttest.PodCIDRs[1].String(), netip.MustParseAddr("fd00:77::1")))
	})
}

func replaceAddress(link netlink.Link, prefix string) error {
	address, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	return netlink.AddrReplace(link, address)
}
