// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

func texts(prefixes []netip.Prefix) (list []string) {
	for _, p := range prefixes {
		list = append(list, p.String())
	}
	return list
}

// TestAddressesOfASingleHost reads interfaces with addresses of the full length of their family.
func TestAddressesOfASingleHost(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	for _, c := range []struct {
		name             string
		permanent, ended []string // ended ones have an end
		local            bool     // link-local addresses move, too
		moves, stranded  []string
	}{
		{name: "IPv4 next to a wider one stays", permanent: []string{"192.0.2.1/24", "192.0.2.9/32"}, moves: []string{"192.0.2.1/24"}},
		{
			name: "IPv6 with an end, of a DHCP server, moves", permanent: []string{"2001:db8::1/64"}, ended: []string{"2001:db8::9/128"},
			moves: []string{"2001:db8::1/64", "2001:db8::9/128"},
		},
		{
			name: "IPv6 without an end is stranded", permanent: []string{"2001:db8::1/64", "2001:db8::9/128"},
			moves: []string{"2001:db8::1/64"}, stranded: []string{"2001:db8::9/128"},
		},
		{
			name: "IPv6 without an end is stranded next to one with an end", permanent: []string{"2001:db8::9/128"}, ended: []string{"2001:db8::1/64"},
			moves: []string{"2001:db8::1/64"}, stranded: []string{"2001:db8::9/128"},
		},
		{name: "the only IPv6 address moves", permanent: []string{"192.0.2.1/24", "2001:db8::9/128"}, moves: []string{"192.0.2.1/24", "2001:db8::9/128"}},
		{
			name: "the only IPv6 address next to a link-local one moves", permanent: []string{"fe80::1/64", "2001:db8::9/128"}, local: true,
			moves: []string{"2001:db8::9/128", "fe80::1/64"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			link := nodetest.Veth(t, "eth1")
			defer func() { must.Succeed(t, netlink.LinkDel(link)) }()
			if c.local {
				for _, a := range must.Value(netlink.AddrList(link, netlink.FAMILY_V6)) { // the kernel's own
					must.Succeed(t, netlink.AddrDel(link, &a))
				}
				must.Succeed(t, os.WriteFile("/proc/sys/net/ipv6/conf/eth1/addr_gen_mode", []byte("1"), 0o600))
			}
			nodetest.AddAddresses(t, link, 0, c.permanent...)
			nodetest.AddAddresses(t, link, 1000, c.ended...)
			moves := texts(Prefixes(must.Value(Read(link)).Addresses))
			slices.Sort(moves)
			if !slices.Equal(moves, c.moves) {
				t.Errorf("%v move, want %v", moves, c.moves)
			}
			if got := texts(must.Value(Stranded(link))); !slices.Equal(got, c.stranded) {
				t.Errorf("%v are stranded, want %v", got, c.stranded)
			}
		})
	}
}
