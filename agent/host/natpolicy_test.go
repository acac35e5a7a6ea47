// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestEgressAddressesAndNATRules(t *testing.T) {
	n := agenttest.Serving(t)
	n.Router()
	far := n.FarHost()
	pod := n.Sandbox(n.Pod("talker", 300), agenttest.NewID())
	pod.MustAdd()
	t.Cleanup(pod.MustDel)
	egress := []netip.Addr{netip.MustParseAddr("172.30.0.9"), netip.MustParseAddr("fd00:172:30::9")}

	n.Change("ovn-default", func(s *v1.SubnetSpec) {
		s.GatewayType, s.GatewayNode = v1.GatewayCentralized, fmt.Sprintf("%s:%s,%s:%s", agenttest.NodeName, egress[0], agenttest.NodeName, egress[1])
	})
	n.Eventually("the node has the addresses", func() bool { return claimed("eth0") == egress[0].String()+" "+egress[1].String() })
	for i := range egress {
		seen(n, pod.NS, far, agenttest.Outside[i].Addr(), egress[i])
		if from := agenttest.Exchange(t, nil, far, agenttest.Outside[i].Addr(), "hello"); from != agenttest.NodeIPs[i].Addr() {
			t.Errorf("the node's own traffic comes from %s, want %s", from, agenttest.NodeIPs[i].Addr())
		}
	}

	for i := range egress {
		losesItsTranslation(n, pod.NS, far, agenttest.Outside[i].Addr())
	}

	// Without translation, packets have the pod's address as source, so the host outside needs a route to pods.
	must.Succeed(t, far.Do(func(ns.NetNS) error {
		return errors.Join(
			agenttest.AddRoute(agenttest.PodCIDRs[0].String(), agenttest.NodeIPs[0].Addr()),
			agenttest.AddRoute(agenttest.PodCIDRs[1].String(), agenttest.NodeIPs[1].Addr()),
		)
	}))
	rules := func(rules ...v1.NATOutgoingPolicyRule) {
		n.Helper()
		n.Change("ovn-default", func(s *v1.SubnetSpec) { s.NATOutgoingPolicyRules = rules })
	}
	rule := func(action v1.NATOutgoingPolicyAction, src, dst string) v1.NATOutgoingPolicyRule {
		return v1.NATOutgoingPolicyRule{Action: action, Match: v1.NATOutgoingPolicyMatch{SrcIPs: src, DstIPs: dst}}
	}
	both := agenttest.Outside[0].Addr().String() + "," + agenttest.Outside[1].Addr().String()
	for name, c := range map[string]struct {
		rules      []v1.NATOutgoingPolicyRule
		translated bool
	}{
		"forward by destination":             {[]v1.NATOutgoingPolicyRule{rule("forward", "", both)}, false},
		"forward of others":                  {[]v1.NATOutgoingPolicyRule{rule("forward", "10.16.9.0/24,fd00:10:16::9:0/124", "")}, true},
		"the first rule counts":              {[]v1.NATOutgoingPolicyRule{rule("nat", "", both), rule("forward", "", "")}, true},
		"forward of everything":              {[]v1.NATOutgoingPolicyRule{rule("nat", "", "203.0.113.1"), rule("forward", "", "")}, false},
		"forward by source, among many more": {[]v1.NATOutgoingPolicyRule{rule("forward", "10.16.0.0/16, 10.16.0.7,fd00:10:16::/112", "")}, false},
	} {
		rules(c.rules...)
		for i, pod4or6 := range agenttest.AddressesOf(300) {
			want := pod4or6
			if c.translated {
				want = egress[i]
			}
			t.Log(name)
			seen(n, pod.NS, far, agenttest.Outside[i].Addr(), want)
		}
	}
	rules()
	n.Eventually("no chain of rules is left", func() bool { return !strings.Contains(ruleset(t), "policy-") })

	t.Run("a rule counts for connections that begin after it was written", func(t *testing.T) {
		n := n.In(t)
		for i, podIP := range agenttest.AddressesOf(300) {
			translated := connect(n, pod.NS, far, agenttest.Outside[i].Addr(), egress[i])
			rules(rule("forward", "", both))
			seen(n, pod.NS, far, agenttest.Outside[i].Addr(), podIP)
			forwarded := connect(n, pod.NS, far, agenttest.Outside[i].Addr(), podIP)
			goesOn(t, "translated", translated)
			rules()
			seen(n, pod.NS, far, agenttest.Outside[i].Addr(), egress[i])
			goesOn(t, "forwarded", forwarded)
		}
	})

	t.Run("a restart restores lost state and applies the changes since", func(t *testing.T) {
		n := n.In(t)
		n.Agent.Kill()
		n.Change("ovn-default", func(s *v1.SubnetSpec) { s.GatewayNode = agenttest.NodeName + ":172.30.0.10" })
		n.StartAgent()
		n.WaitReady()
		n.Eventually("the old addresses are removed", func() bool { return claimed("eth0") == "172.30.0.10" })
		link, err := netlink.LinkByName("eth0")
		must.Succeed(t, err)
		address, err := netlink.ParseAddr("172.30.0.10/32")
		must.Succeed(t, err)
		must.Succeed(t, netlink.AddrDel(link, address))
		n.Eventually("an address that someone deletes comes back", func() bool { return claimed("eth0") == "172.30.0.10" })
	})
	n.Change("ovn-default", func(s *v1.SubnetSpec) { s.GatewayType, s.GatewayNode = v1.GatewayDistributed, "" })
	n.Eventually("nothing is left", func() bool { return claimed("eth0") == "" && ownState() == "" })
	seen(n, pod.NS, far, agenttest.Outside[0].Addr(), agenttest.NodeIPs[0].Addr())
}

// connect opens a connection, checks that its source address at the receiver is want, and returns both ends.
func connect(n *agenttest.Node, from, to ns.NetNS, address, want netip.Addr) [2]net.Conn {
	n.Helper()
	var ends [2]net.Conn
	must.Succeed(n.TB, to.Do(func(ns.NetNS) error {
		listener, err := net.Listen("tcp", net.JoinHostPort(address.String(), "0"))
		if err != nil {
			return err
		}
		must.Succeed(n.TB, from.Do(func(ns.NetNS) error {
			ends[0], err = net.DialTimeout("tcp", listener.Addr().String(), agenttest.Patience)
			return err
		}))
		ends[1], err = listener.Accept()
		return errors.Join(err, listener.Close())
	}))
	n.Cleanup(func() { _ = errors.Join(ends[0].Close(), ends[1].Close()) })
	if got := ends[1].RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(); got != want {
		n.Fatalf("%s sees %s, want %s", address, got, want)
	}
	return ends
}

// goesOn checks that a connection passes data both ways.
func goesOn(t *testing.T, what string, ends [2]net.Conn) {
	t.Helper()
	for i, from := range ends {
		must.Succeed(t, errors.Join(from.SetDeadline(time.Now().Add(agenttest.Patience)), ends[1-i].SetDeadline(time.Now().Add(agenttest.Patience))))
		_, err := from.Write([]byte("still there?"))
		if err == nil {
			_, err = io.ReadFull(ends[1-i], make([]byte, len("still there?")))
		}
		if err != nil {
			t.Errorf("a %s connection to %s: %v", what, ends[0].RemoteAddr(), err)
		}
	}
}
