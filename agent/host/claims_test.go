// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/host"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// An earlier pass may have added the address and failed to set rp_filter, or another program has reset it.
func TestAnAddressThatIsThereAcceptsPacketsFromAnySource(t *testing.T) {
	nodetest.InNamespace(t, func(t *testing.T) {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "outside"}}
		network, err := netlink.ParseAddr("192.0.2.2/24")
		must.Succeed(t, err)
		must.Succeed(t, netlink.LinkAdd(link))
		must.Succeed(t, netlink.AddrAdd(link, network))
		const key = "net/ipv4/conf/outside/rp_filter"
		for range 2 {
			must.Succeed(t, host.Sysctl(key, "1"))
			links, err := host.SetClaims([]netip.Addr{netip.MustParseAddr("192.0.2.9")})
			must.Succeed(t, err)
			if len(links) != 1 || links[0] != link.Index {
				t.Errorf("links %v have the address, want %d", links, link.Index)
			}
			if got := host.Value(key); got != "2" {
				t.Errorf("rp_filter is %s, want 2", got)
			}
		}
	})
}

// A provider network moves the network of an interface to a bridge. The kernel answers for IPv6 addresses on their own interface only.
func TestAnAddressFollowsItsNetwork(t *testing.T) {
	nodetest.InNamespace(t, func(t *testing.T) {
		first, second := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "first"}}, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "second"}}
		var networks []*netlink.Addr
		for _, text := range []string{"192.0.2.2/24", "2001:db8::2/64"} {
			network, err := netlink.ParseAddr(text)
			must.Succeed(t, err)
			networks = append(networks, network)
		}
		must.Succeed(t, netlink.LinkAdd(first))
		must.Succeed(t, netlink.LinkAdd(second))
		want := []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}
		for i, link := range []netlink.Link{first, second, first} {
			for _, network := range networks {
				if i > 0 {
					must.Succeed(t, netlink.AddrDel([]netlink.Link{second, first}[i%2], network))
				}
				must.Succeed(t, netlink.AddrAdd(link, network))
			}
			links, err := host.SetClaims(want)
			must.Succeed(t, err)
			if index := link.Attrs().Index; !slices.Equal(links, []int{index, index}) {
				t.Errorf("the addresses are on %v, not on %d", links, index)
			}
		}
		_, err := host.SetClaims(nil)
		must.Succeed(t, err)
		for _, link := range []netlink.Link{first, second} {
			list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			must.Succeed(t, err)
			for _, a := range list {
				if ones, bits := a.Mask.Size(); ones == bits {
					t.Errorf("%s keeps %s", link.Attrs().Name, a.IPNet)
				}
			}
		}
	})
}

// TestTheSameAddressOfTheNodeStays gives a node egress addresses that it then gets itself: in a network, and as a single address on another interface.
func TestTheSameAddressOfTheNodeStays(t *testing.T) {
	nodetest.InNamespace(t, func(t *testing.T) {
		links := map[string]netlink.Link{}
		for _, name := range []string{"wide", "narrow", "alone"} {
			link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
			must.Succeed(t, netlink.LinkAdd(link))
			links[name] = link
		}
		must.Succeed(t, agenttest.AddAddresses(links["wide"], netip.MustParsePrefix("10.0.0.5/8"), netip.MustParsePrefix("2001:db8::5/32")))
		want := []netip.Addr{netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("2001:db8:1::9")}
		claims := func() {
			t.Helper()
			claimed, err := host.SetClaims(want)
			must.Succeed(t, err)
			if index := links["wide"].Attrs().Index; !slices.Equal(claimed, []int{index, index}) {
				t.Errorf("the addresses are on %v, not on %d", claimed, index)
			}
		}
		claims()
		own := map[string][]netip.Prefix{
			"narrow": {netip.MustParsePrefix("10.1.0.9/24"), netip.MustParsePrefix("2001:db8:1::9/64")},
			"alone":  {netip.MustParsePrefix("10.1.0.9/32"), netip.MustParsePrefix("2001:db8:1::9/128")},
		}
		for name, prefixes := range own {
			must.Succeed(t, agenttest.AddAddresses(links[name], prefixes...))
		}
		claims()
		_, err := host.SetClaims(nil)
		must.Succeed(t, err)
		own["wide"] = []netip.Prefix{netip.MustParsePrefix("10.0.0.5/8"), netip.MustParsePrefix("2001:db8::5/32")}
		for name, prefixes := range own {
			list, err := netlink.AddrList(links[name], netlink.FAMILY_ALL)
			must.Succeed(t, err)
			var got []netip.Prefix
			for _, a := range list {
				ones, _ := a.Mask.Size()
				address, _ := netip.AddrFromSlice(a.IP)
				got = append(got, netip.PrefixFrom(address.Unmap(), ones))
			}
			if !slices.Equal(got, prefixes) {
				t.Errorf("%s has %v, not %v", name, got, prefixes)
			}
		}
	})
}

func TestAddressesOfTheNodeStay(t *testing.T) {
	n := agenttest.Serving(t)
	link, err := netlink.LinkByName("eth0")
	must.Succeed(t, err)
	own := netip.MustParsePrefix("172.30.0.11/32")
	must.Succeed(t, agenttest.AddAddresses(link, own))
	t.Cleanup(func() { _ = netlink.AddrDel(link, &netlink.Addr{IPNet: agenttest.CIDR(own.String())}) })
	n.Change("ovn-default", func(s *v1.SubnetSpec) {
		s.GatewayType, s.GatewayNode = v1.GatewayCentralized, agenttest.NodeName+":"+own.Addr().String()
	})
	n.Eventually("traffic leaves with the address", func() bool { return strings.Contains(ruleset(t), own.Addr().String()) })
	n.Change("ovn-default", func(s *v1.SubnetSpec) { s.GatewayNode = agenttest.NodeName + ":203.0.113.5" }) // in no network of the node
	n.Eventually("traffic leaves with the other address", func() bool { return strings.Contains(ruleset(t), "203.0.113.5") })
	if got := claimed("eth0"); got != own.Addr().String() {
		t.Errorf("eth0 has %s, want the node's own %s", got, own)
	}
}
