// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/gateway"
)

// change changes a subnet's spec and marks it as valid.
func (n *node) change(name string, f func(*v1.SubnetSpec)) {
	n.Helper()
	n.judge(n.changeOnly(name, f), nil)
}

// changeOnly changes a subnet's spec without validating it.
func (n *node) changeOnly(name string, f func(*v1.SubnetSpec)) *v1.Subnet {
	n.Helper()
	s := &v1.Subnet{}
	must(n.TB, n.api.Get(n.Context(), client.ObjectKey{Name: name}, s))
	base := s.DeepCopy()
	f(&s.Spec)
	must(n.TB, n.api.Patch(n.Context(), s, client.MergeFrom(base)))
	return s
}

// claimed returns the single addresses (/32 and /128) of an interface.
func claimed(name string) string {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err.Error()
	}
	list, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, a := range list {
		if ones, bits := a.Mask.Size(); ones == bits {
			out = append(out, a.IP.String())
		}
	}
	return strings.Join(out, " ")
}

// ownState returns the agent's routing rules, and its routes in tables other than main.
func ownState() string {
	out, _ := exec.Command("sh", "-c",
		"for f in -4 -6; do ip $f rule show | grep 'proto 75'; ip $f route show table all proto 75 | grep table; done").CombinedOutput()
	return string(out)
}

// seen waits until connections to address have the source address want at the receiver.
func (n *node) seen(from, to ns.NetNS, address, want netip.Addr) {
	n.Helper()
	n.eventually(fmt.Sprintf("%s sees %s", address, want), func() bool { return exchange(n.TB, from, to, address, "hello") == want })
}

func TestEgressAddressesAndNATRules(t *testing.T) {
	n := serving(t)
	n.router()
	far := n.farHost()
	pod := n.sandbox(n.pod("talker", 300), newID())
	pod.mustAdd()
	t.Cleanup(pod.mustDel)
	egress := []netip.Addr{netip.MustParseAddr("172.30.0.9"), netip.MustParseAddr("fd00:172:30::9")}

	n.change("ovn-default", func(s *v1.SubnetSpec) {
		s.GatewayType, s.GatewayNode = v1.GatewayCentralized, fmt.Sprintf("%s:%s,%s:%s", nodeName, egress[0], nodeName, egress[1])
	})
	n.eventually("the node has the addresses", func() bool { return claimed("eth0") == egress[0].String()+" "+egress[1].String() })
	for i := range egress {
		n.seen(pod.ns, far, outside[i].Addr(), egress[i])
		if from := exchange(t, nil, far, outside[i].Addr(), "hello"); from != nodeIPs[i].Addr() {
			t.Errorf("the node's own traffic comes from %s, want %s", from, nodeIPs[i].Addr())
		}
	}

	for i := range egress {
		n.losesItsTranslation(pod.ns, far, outside[i].Addr())
	}

	// Without translation, packets have the pod's address as source, so the host outside needs a route to pods.
	must(t, far.Do(func(ns.NetNS) error {
		return errors.Join(addRoute(podCIDRs[0].String(), nodeIPs[0].Addr()), addRoute(podCIDRs[1].String(), nodeIPs[1].Addr()))
	}))
	rules := func(rules ...v1.NATOutgoingPolicyRule) {
		n.Helper()
		n.change("ovn-default", func(s *v1.SubnetSpec) { s.NATOutgoingPolicyRules = rules })
	}
	rule := func(action v1.NATOutgoingPolicyAction, src, dst string) v1.NATOutgoingPolicyRule {
		return v1.NATOutgoingPolicyRule{Action: action, Match: v1.NATOutgoingPolicyMatch{SrcIPs: src, DstIPs: dst}}
	}
	both := outside[0].Addr().String() + "," + outside[1].Addr().String()
	for name, c := range map[string]struct {
		rules      []v1.NATOutgoingPolicyRule
		translated bool
	}{
		"forward by destination":             {[]v1.NATOutgoingPolicyRule{rule("forward", "", both)}, false},
		"forward of others":                  {[]v1.NATOutgoingPolicyRule{rule("forward", "10.16.9.0/24,fd00:10:16::9:0/124", "")}, true},
		"the first rule counts":              {[]v1.NATOutgoingPolicyRule{rule("nat", "", both), rule("forward", "", "")}, true},
		"forward of everything":              {[]v1.NATOutgoingPolicyRule{rule("nat", "", "203.0.113.1"), rule("forward", "", "")}, false},
		"forward by source, among many more": {[]v1.NATOutgoingPolicyRule{rule("forward", podCIDRs[0].String()+", 10.16.0.7,"+podCIDRs[1].String(), "")}, false},
	} {
		rules(c.rules...)
		for i, pod4or6 := range addressesOf(300) {
			want := pod4or6
			if c.translated {
				want = egress[i]
			}
			t.Log(name)
			n.seen(pod.ns, far, outside[i].Addr(), want)
		}
	}
	rules()
	n.eventually("no chain of rules is left", func() bool { return !strings.Contains(ruleset(t), "policy-") })

	t.Run("a rule counts for connections that begin after it was written", func(t *testing.T) {
		n := n.in(t)
		for i, podIP := range addressesOf(300) {
			translated := n.connect(pod.ns, far, outside[i].Addr(), egress[i])
			rules(rule("forward", "", both))
			n.seen(pod.ns, far, outside[i].Addr(), podIP)
			forwarded := n.connect(pod.ns, far, outside[i].Addr(), podIP)
			goesOn(t, "translated", translated)
			rules()
			n.seen(pod.ns, far, outside[i].Addr(), egress[i])
			goesOn(t, "forwarded", forwarded)
		}
	})

	t.Run("a restart restores lost state and applies the changes since", func(t *testing.T) {
		n := n.in(t)
		n.agent.Kill()
		n.change("ovn-default", func(s *v1.SubnetSpec) { s.GatewayNode = nodeName + ":172.30.0.10" })
		n.startAgent()
		n.waitReady()
		n.eventually("the old addresses are removed", func() bool { return claimed("eth0") == "172.30.0.10" })
		link, err := netlink.LinkByName("eth0")
		must(t, err)
		address, err := netlink.ParseAddr("172.30.0.10/32")
		must(t, err)
		must(t, netlink.AddrDel(link, address))
		n.eventually("an address that someone deletes comes back", func() bool { return claimed("eth0") == "172.30.0.10" })
	})
	n.change("ovn-default", func(s *v1.SubnetSpec) { s.GatewayType, s.GatewayNode = v1.GatewayDistributed, "" })
	n.eventually("nothing is left", func() bool { return claimed("eth0") == "" && ownState() == "" })
	n.seen(pod.ns, far, outside[0].Addr(), nodeIPs[0].Addr())
}

// connect opens a connection, checks that its source address at the receiver is want, and returns both ends.
func (n *node) connect(from, to ns.NetNS, address, want netip.Addr) [2]net.Conn {
	n.Helper()
	var ends [2]net.Conn
	must(n.TB, to.Do(func(ns.NetNS) error {
		listener, err := net.Listen("tcp", net.JoinHostPort(address.String(), "0"))
		if err != nil {
			return err
		}
		must(n.TB, from.Do(func(ns.NetNS) error {
			ends[0], err = net.DialTimeout("tcp", listener.Addr().String(), patience)
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
		must(t, errors.Join(from.SetDeadline(time.Now().Add(patience)), ends[1-i].SetDeadline(time.Now().Add(patience))))
		_, err := from.Write([]byte("still there?"))
		if err == nil {
			_, err = io.ReadFull(ends[1-i], make([]byte, len("still there?")))
		}
		if err != nil {
			t.Errorf("a %s connection to %s: %v", what, ends[0].RemoteAddr(), err)
		}
	}
}

// losesItsTranslation checks that a connection which this gateway does not know, as after a failover, is reset at once.
func (n *node) losesItsTranslation(from, to ns.NetNS, address netip.Addr) {
	n.Helper()
	var listener net.Listener
	must(n.TB, to.Do(func(ns.NetNS) (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(address.String(), "0"))
		return err
	}))
	defer listener.Close()
	home, err := ns.GetCurrentNS()
	must(n.TB, err)
	defer home.Close()
	must(n.TB, from.Do(func(ns.NetNS) error {
		connection, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return err
		}
		defer connection.Close()
		must(n.TB, home.Do(func(ns.NetNS) error { return forgetConnections() }))
		must(n.TB, connection.SetDeadline(time.Now().Add(patience)))
		_, err = connection.Write([]byte("still there?")) // the handshake's last packet may have caused the reset already
		if err == nil {
			_, err = connection.Read(make([]byte, 1))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			n.Errorf("a connection to %s that lost its translation: %v", address, err)
		}
		return nil
	}))
}

// forgetConnections flushes the conntrack table of the current namespace.
func forgetConnections() error {
	for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if _, err := netlinksafe.ConntrackDeleteFilters(netlink.ConntrackTable, family, everything{}); err != nil {
			return err
		}
	}
	return nil
}

// everything matches every connection (netlink.CustomConntrackFilter).
type everything struct{}

func (everything) MatchConntrackFlow(*netlink.ConntrackFlow) bool { return true }

func TestAddressesOfTheNodeStay(t *testing.T) {
	n := serving(t)
	link, err := netlink.LinkByName("eth0")
	must(t, err)
	own := netip.MustParsePrefix("172.30.0.11/32")
	must(t, addAddresses(link, own))
	t.Cleanup(func() { _ = netlink.AddrDel(link, &netlink.Addr{IPNet: cidr(own.String())}) })
	n.change("ovn-default", func(s *v1.SubnetSpec) {
		s.GatewayType, s.GatewayNode = v1.GatewayCentralized, nodeName+":"+own.Addr().String()
	})
	n.eventually("traffic leaves with the address", func() bool { return strings.Contains(ruleset(t), own.Addr().String()) })
	n.change("ovn-default", func(s *v1.SubnetSpec) { s.GatewayNode = nodeName + ":203.0.113.5" }) // in no network of the node
	n.eventually("traffic leaves with the other address", func() bool { return strings.Contains(ruleset(t), "203.0.113.5") })
	if got := claimed("eth0"); got != own.Addr().String() {
		t.Errorf("eth0 has %s, want the node's own %s", got, own)
	}
}

func TestExternalGateway(t *testing.T) {
	n := serving(t)
	n.router()
	edge := n.edge()
	pod := n.sandbox(n.pod("talker", 300), newID())
	pod.mustAdd()
	t.Cleanup(pod.mustDel)
	other := n.sandbox(n.pod("listener", 301), newID())
	other.mustAdd()
	t.Cleanup(other.mustDel)
	foreign := netlink.NewRule()
	foreign.Src, foreign.Priority, foreign.Table, foreign.Family = cidr("203.0.113.0/24"), 900, 900, netlink.FAMILY_V4
	must(t, netlink.RuleAdd(foreign))
	t.Cleanup(func() { _ = netlink.RuleDel(foreign) })

	n.change("ovn-default", func(s *v1.SubnetSpec) {
		s.NATOutgoing = false
		s.ExternalEgressGateway, s.PolicyRoutingPriority, s.PolicyRoutingTableID = "192.168.77.254,fd00:77::fe", 1000, 1000
	})
	n.eventually("the rules are there", func() bool { return strings.Count(ownState(), "lookup 1000") == 2 })
	for i, beyond := range beyondEdge {
		podIP, otherIP := addressesOf(300)[i], addressesOf(301)[i]
		n.seen(pod.ns, edge, beyond.Addr(), podIP)
		n.seen(pod.ns, other.ns, otherIP, podIP)
		n.seen(nil, pod.ns, podIP, nodeIPs[i].Addr())
	}
	t.Run("a table that loses its route, and an interface that was down, come back", func(t *testing.T) {
		n := n.in(t)
		link, err := netlink.LinkByName("eth1")
		must(t, err)
		must(t, netlink.LinkSetDown(link))
		must(t, errors.Join(netlink.LinkSetUp(link), replaceAddress(link, "fd00:77::1/64")))
		n.eventually("the routes are back", func() bool { return strings.Count(ownState(), "default via") == 2 })
		for i, beyond := range beyondEdge {
			n.seen(pod.ns, edge, beyond.Addr(), addressesOf(300)[i])
		}
	})
	n.change("ovn-default", func(s *v1.SubnetSpec) { s.PolicyRoutingPriority, s.PolicyRoutingTableID = 1001, 1001 })
	n.eventually("the table is another one", func() bool {
		state := ownState()
		return strings.Count(state, "lookup 1001") == 2 && !strings.Contains(state, "1000")
	})
	n.seen(pod.ns, edge, beyondEdge[0].Addr(), addressesOf(300)[0])

	n.agent.Kill()
	n.change("ovn-default", func(s *v1.SubnetSpec) { s.ExternalEgressGateway = "" })
	n.startAgent()
	n.waitReady()
	n.eventually("nothing of it is left", func() bool { return ownState() == "" })
	if list, err := netlinksafe.RuleListFiltered(netlink.FAMILY_V4, foreign, netlink.RT_FILTER_TABLE); err != nil || len(list) != 1 {
		t.Errorf("a rule of another owner was removed: %v, %v", list, err)
	}
	const unreachable = "203.0.113.9" // in no network of the node
	n.change("ovn-default", func(s *v1.SubnetSpec) { s.ExternalEgressGateway = unreachable })
	n.waitReady()
	reported := func() bool {
		c := n.networkUnavailable()
		if c == nil || c.Status != corev1.ConditionFalse {
			t.Fatalf("one external gateway makes the condition of the node %+v", c)
		}
		return strings.Contains(c.Message, unreachable)
	}
	n.eventually("the node's condition names the router", reported)
	if !strings.Contains(n.agent.Log(), unreachable) {
		t.Error("the agent's log does not name the router")
	}
	n.change("ovn-default", func(s *v1.SubnetSpec) { s.ExternalEgressGateway = "" })
	n.eventually("nothing of that is left either", func() bool { return ownState() == "" && !reported() })
}

// beyondEdge are addresses behind the router on eth1.
var beyondEdge = []netip.Prefix{netip.MustParsePrefix("198.51.100.1/32"), netip.MustParsePrefix("2001:db8:51::1/128")}

// edge is a router on the other end of eth1.
func (n *node) edge() ns.NetNS {
	n.Helper()
	link, err := netlink.LinkByName("eth1")
	must(n.TB, err)
	must(n.TB, replaceAddress(link, "fd00:77::1/64"))
	return n.beyond("eth1-out", func(link netlink.Link) error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo),
			addAddresses(link, netip.MustParsePrefix("192.168.77.254/24"), netip.MustParsePrefix("fd00:77::fe/64")), addAddresses(lo, beyondEdge...),
			addRoute(podCIDRs[0].String(), netip.MustParseAddr("192.168.77.1")), addRoute(podCIDRs[1].String(), netip.MustParseAddr("fd00:77::1")))
	})
}

func replaceAddress(link netlink.Link, prefix string) error {
	address, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	return netlink.AddrReplace(link, address)
}

// lease returns the node's Lease as a gateway; an empty one if it does not exist.
func (n *node) lease() *coordinationv1.Lease {
	n.Helper()
	o := &coordinationv1.Lease{}
	err := n.api.Get(n.Context(), client.ObjectKey{Namespace: n.options.Namespace, Name: gateway.LeasePrefix + nodeName}, o)
	must(n.TB, client.IgnoreNotFound(err))
	return o
}

func TestGatewayRenewsItsLease(t *testing.T) {
	n := serving(t)
	lease := n.lease
	if lease().Spec.RenewTime != nil {
		t.Fatal("a node that is no gateway has a Lease")
	}
	renews := func() {
		n.Helper()
		before := lease().Spec.RenewTime
		n.eventually("the Lease is renewed", func() bool {
			now := lease().Spec.RenewTime
			return now != nil && (before == nil || now.After(before.Time))
		})
	}
	n.change("ovn-default", func(s *v1.SubnetSpec) { s.GatewayType, s.GatewayNode = v1.GatewayCentralized, nodeName })
	renews()
	renews()
	if l := lease(); len(l.OwnerReferences) != 1 || l.OwnerReferences[0].Name != nodeName || *l.Spec.LeaseDurationSeconds != 8 {
		t.Errorf("the Lease is %+v", l)
	}

	must(t, n.agent.Signal(syscall.SIGTERM))
	_ = n.agent.Wait()
	if l := lease(); *l.Spec.LeaseDurationSeconds != 20 {
		t.Errorf("an agent that ends in good order asks for %d s", *l.Spec.LeaseDurationSeconds)
	}
	n.startAgent()
	n.waitReady()
	renews()

	n.server.Kill() // the node's data path is down
	n.eventually("readiness notices", func() bool { return n.health("/readyz") != 200 })
	n.startDatabase()
	n.waitReady()
	renews()

	n.change("ovn-default", func(s *v1.SubnetSpec) { s.GatewayType, s.GatewayNode = v1.GatewayDistributed, "" })
	n.eventually("the Lease is given up", func() bool { return lease().Spec.RenewTime == nil })
}
