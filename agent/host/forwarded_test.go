// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/host"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// answers returns the addresses for which the node answers on an interface, sorted.
func answers(name string) string {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.NeighProxyList(link.Attrs().Index, family)
		if err != nil {
			return err.Error()
		}
		for _, n := range list {
			out = append(out, n.IP.String())
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// forwards returns the addresses to which the node has routes through ovn0.
func forwards() string {
	link, err := netlink.LinkByName(host.JoinInterface)
	if err != nil {
		return err.Error()
	}
	list, err := netlink.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, r := range list {
		if r.Dst != nil && r.Protocol == 75 && r.Gw == nil {
			if ones, bits := r.Dst.Mask.Size(); ones == bits {
				out = append(out, r.Dst.IP.String())
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestTheNodeOfAnEgressAddressAnswersForIt follows the status of an EgressAddress: its node answers for the addresses and forwards packets to them, and renews its Lease as
// the standby does.
func TestTheNodeOfAnEgressAddressAnswersForIt(t *testing.T) {
	n := agenttest.Serving(t)
	e := &v1.EgressAddress{ObjectMeta: metav1.ObjectMeta{Name: "out"}, Spec: v1.EgressAddressSpec{
		Addresses: []string{"172.30.0.210", "fd00:172:30::d2"}, NodeSelector: &metav1.LabelSelector{},
	}}
	must.Succeed(t, n.API.Create(t.Context(), e))
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(n.API.Delete(context.Background(), e)); err != nil {
			t.Error(err)
		}
	})
	put := func(active, standby string, addresses ...string) {
		t.Helper()
		base := e.DeepCopy()
		e.Status.Node, e.Status.Standby, e.Status.Addresses = active, standby, addresses
		must.Succeed(t, n.API.Status().Patch(t.Context(), e, client.MergeFrom(base)))
	}
	const both = "172.30.0.210 fd00:172:30::d2"
	has := func(onLink, routed string) {
		t.Helper()
		n.Eventually(fmt.Sprintf("the node answers for %q and forwards to %q", onLink, routed), func() bool { return answers("eth0") == onLink && forwards() == routed })
	}
	// Another host knows the addresses with the hardware address of their former node.
	node, err := netlink.LinkByName("eth0")
	must.Succeed(t, err)
	former := net.HardwareAddr{2, 0, 0, 0, 0, 99}
	far := n.FarHost()
	there := func(f func(link netlink.Link) error) {
		t.Helper()
		must.Succeed(t, far.Do(func(ns.NetNS) error {
			link, err := netlink.LinkByName("eth0-out")
			if err != nil {
				return err
			}
			return f(link)
		}))
	}
	known := func(address string) (hardware string) {
		there(func(link netlink.Link) error {
			list, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
			for _, neighbour := range list {
				if neighbour.IP.String() == address {
					hardware = neighbour.HardwareAddr.String()
				}
			}
			return err
		})
		return hardware
	}
	for _, address := range e.Spec.Addresses {
		there(func(link netlink.Link) error {
			return netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: net.ParseIP(address), HardwareAddr: former, State: netlink.NUD_STALE})
		})
	}
	put(agenttest.NodeName, "other", e.Spec.Addresses...)
	has(both, both)
	for _, address := range e.Spec.Addresses {
		n.Eventually("another host learns the new place of "+address, func() bool { return known(address) == node.Attrs().HardwareAddr.String() })
		there(func(link netlink.Link) error {
			return netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: net.ParseIP(address)})
		})
		n.Eventually("the node answers for "+address, func() bool {
			there(func(netlink.Link) error {
				conn, err := net.Dial("udp", net.JoinHostPort(address, "9"))
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = conn.Write([]byte("x"))
				return err
			})
			return known(address) == node.Attrs().HardwareAddr.String()
		})
	}
	n.Eventually("the Lease is renewed", func() bool { return leaseOf(n).Spec.RenewTime != nil })
	// A router with the addresses, in place of OVN's: packets leave the node with them, and answers come back.
	router := n.Forwarder("egress", net.HardwareAddr{2, 0, 0, 0, 0, 42}, netip.MustParsePrefix("100.64.0.9/16"), netip.MustParsePrefix("fd00:100:64::9/112"))
	must.Succeed(t, router.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName("lr")
		if err != nil {
			return err
		}
		for i, address := range e.Spec.Addresses {
			own := netip.MustParseAddr(address)
			if err := agenttest.AddAddresses(link, netip.PrefixFrom(own, own.BitLen())); err != nil {
				return err
			}
			to := netipx.PrefixIPNet(agenttest.Outside[i].Masked())
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: agenttest.JoinIPs[i].AsSlice(), Src: own.AsSlice()}); err != nil {
				return err
			}
		}
		return nil
	}))
	for i, address := range e.Spec.Addresses {
		seen(n, router, far, agenttest.Outside[i].Addr(), netip.MustParseAddr(address))
	}

	n.Agent.Kill()
	n.StartAgent()
	n.WaitReady()
	has(both, both)
	put(agenttest.NodeName, "", "172.30.0.210", "203.0.113.5") // the second one in no network of the node
	has("172.30.0.210", "172.30.0.210 203.0.113.5")
	put(agenttest.NodeName, "", "172.30.0.210", agenttest.NodeIPs[0].Addr().String(), "127.0.0.2", "nonsense")
	has("172.30.0.210", "172.30.0.210")
	put("other", agenttest.NodeName, "172.30.0.210")
	has("", "")
	n.Eventually("the Lease is renewed", func() bool { return leaseOf(n).Spec.RenewTime != nil })
	put("other", "third", "172.30.0.210")
	n.Eventually("the Lease is given up", func() bool { return leaseOf(n).Spec.RenewTime == nil })
	put(agenttest.NodeName, "", "172.30.0.210")
	has("172.30.0.210", "172.30.0.210")
	n.Agent.Kill()
	must.Succeed(t, n.API.Delete(t.Context(), e))
	n.StartAgent()
	n.WaitReady()
	has("", "")
}

// TestAnswersFollowTheNetwork moves the network of an interface to a bridge, as a provider network does. Entries of other programs stay.
func TestAnswersFollowTheNetwork(t *testing.T) {
	nodetest.InNamespace(t, func(t *testing.T) {
		links := []*netlink.Bridge{{LinkAttrs: netlink.LinkAttrs{Name: "first"}}, {LinkAttrs: netlink.LinkAttrs{Name: "second"}}, {LinkAttrs: netlink.LinkAttrs{Name: "third"}}}
		var networks []*netlink.Addr
		for _, text := range []string{"192.0.2.2/24", "2001:db8::2/64"} {
			network, err := netlink.ParseAddr(text)
			must.Succeed(t, err)
			networks = append(networks, network)
		}
		for _, link := range links {
			must.Succeed(t, netlink.LinkAdd(link))
			must.Succeed(t, netlink.LinkSetUp(link))
		}
		must.Succeed(t, netlink.NeighAdd(&netlink.Neigh{LinkIndex: links[2].Index, IP: net.ParseIP("192.0.2.77"), Flags: netlink.NTF_PROXY, Family: netlink.FAMILY_V4}))
		want := []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9"), netip.MustParseAddr("203.0.113.5")}
		const other, both = "192.0.2.77", "192.0.2.9 2001:db8::9"
		for i, at := range []int{0, 1, 0} {
			for _, network := range networks {
				if i > 0 {
					must.Succeed(t, netlink.AddrDel(links[1-at], network))
				}
				must.Succeed(t, netlink.AddrAdd(links[at], network))
			}
			got, err := host.SetForwarded(want, nil)
			must.Succeed(t, err)
			if !slices.Equal(got, []int{links[at].Index, links[at].Index}) {
				t.Errorf("the node answers on %v, not on %d", got, links[at].Index)
			}
			for name, want := range map[string]string{links[at].Name: both, links[1-at].Name: "", "third": other} {
				if got := answers(name); got != want {
					t.Errorf("on %s the node answers for %q, want %q", name, got, want)
				}
			}
		}
		// An entry without a note for an address that another node has.
		must.Succeed(t, netlink.NeighAdd(&netlink.Neigh{LinkIndex: links[2].Index, IP: net.ParseIP("192.0.2.78"), Flags: netlink.NTF_PROXY, Family: netlink.FAMILY_V4}))
		_, err := host.SetForwarded(want, []netip.Addr{netip.MustParseAddr("192.0.2.78")})
		must.Succeed(t, err)
		for range 2 {
			_, err := host.SetForwarded(nil, nil)
			must.Succeed(t, err)
			if got := []string{answers("first"), answers("second"), answers("third")}; !slices.Equal(got, []string{"", "", other}) {
				t.Errorf("the node answers for %q", got)
			}
		}
		if state := ownState(); state != "" {
			t.Errorf("the node keeps %s", state)
		}
	})
}

// A plan has no address as both. Between two plans, notes of both exist.
func TestClaimsAndForwardedAddressesAreNotedApart(t *testing.T) {
	nodetest.InNamespace(t, func(t *testing.T) {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "outside"}}
		must.Succeed(t, netlink.LinkAdd(link))
		must.Succeed(t, netlink.LinkSetUp(link))
		for _, text := range []string{"192.0.2.2/24", "2001:db8::2/64"} {
			network, err := netlink.ParseAddr(text)
			must.Succeed(t, err)
			must.Succeed(t, netlink.AddrAdd(link, network))
		}
		both := []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}
		_, err := host.SetClaims(both)
		must.Succeed(t, err)
		_, err = host.SetForwarded(both, nil)
		must.Succeed(t, err)
		_, err = host.SetClaims(nil)
		must.Succeed(t, err)
		list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		must.Succeed(t, err)
		for _, a := range list {
			if ones, bits := a.Mask.Size(); ones == bits {
				t.Errorf("the node keeps %s", a.IPNet)
			}
		}
		if got := answers("outside"); got != "192.0.2.9 2001:db8::9" {
			t.Errorf("the node answers for %q", got)
		}
		_, err = host.SetForwarded(nil, nil)
		must.Succeed(t, err)
		if got, state := answers("outside"), ownState(); got != "" || state != "" {
			t.Errorf("the node answers for %q and keeps %s", got, state)
		}
	})
}
