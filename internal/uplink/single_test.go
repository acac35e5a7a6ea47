// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/must"
	"github.com/kiln-net/kiln/internal/nodetest"
)

// given adds addresses to an interface. An end of zero is none.
func given(t *testing.T, link netlink.Link, valid int, addresses ...string) {
	t.Helper()
	for _, a := range addresses {
		p := netip.MustParsePrefix(a)
		made := &netlink.Addr{IPNet: netipx.PrefixIPNet(p), ValidLft: valid, PreferedLft: valid}
		if p.Addr().Is6() {
			made.Flags = unix.IFA_F_NODAD
		}
		must.Succeed(t, netlink.AddrAdd(link, made))
	}
}

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
			link := made(t, "eth1")
			defer func() { must.Succeed(t, netlink.LinkDel(link)) }()
			if c.local {
				for _, a := range must.Value(netlink.AddrList(link, netlink.FAMILY_V6)) { // the kernel's own
					must.Succeed(t, netlink.AddrDel(link, &a))
				}
				must.Succeed(t, os.WriteFile("/proc/sys/net/ipv6/conf/eth1/addr_gen_mode", []byte("1"), 0o600))
			}
			given(t, link, 0, c.permanent...)
			given(t, link, 1000, c.ended...)
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

// TestAddressesOfASingleHostAfterAMove adds such addresses to an interface that has moved with one that is the only one of its family.
func TestAddressesOfASingleHostAfterAMove(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link, bridge := made(t, "eth1"), made(t, "br-net1")
	given(t, link, 0, "192.0.2.1/24", "2001:db8::1/128")
	before := must.Value(Read(link))
	d := Directory{Path: t.TempDir()}
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseMoved, Before: before}))
	_, err := d.Move(t.Context(), "br-net1")
	must.Succeed(t, err)
	check := func(when string, moved, stranded []string) {
		t.Helper()
		if _, err := d.Move(t.Context(), "br-net1"); err != nil {
			t.Fatal(when, err)
		}
		if got := texts(Prefixes(must.Value(d.Read("br-net1")).Before.Addresses)); !slices.Equal(got, moved) {
			t.Errorf("%s, %v have moved, want %v", when, got, moved)
		}
		if got := texts(must.Value(d.Stranded("br-net1"))); !slices.Equal(got, stranded) {
			t.Errorf("%s, %v are stranded, want %v", when, got, stranded)
		}
	}
	check("after the move", []string{"192.0.2.1/24", "2001:db8::1/128"}, nil)
	given(t, link, 0, "2001:db8::2/64")
	all := []string{"192.0.2.1/24", "2001:db8::1/128", "2001:db8::2/64"}
	check("with a wider one", all, nil)
	given(t, link, 0, "2001:db8::9/128", "192.0.2.9/32")
	check("with virtual ones", all, []string{"2001:db8::9/128"})
	must.Succeed(t, netlink.AddrDel(link, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("2001:db8::9/128"))}))
	check("without the IPv6 one", all, nil)
	given(t, link, 1000, "2001:db8::a/128")
	check("with one of a DHCP server", append(all, "2001:db8::a/128"), nil)
	must.Succeed(t, d.PutBack(t.Context(), "br-net1", "test"))
	got := texts(Prefixes(must.Value(Addresses(link))))
	slices.Sort(got)
	if want := []string{"192.0.2.1/24", "192.0.2.9/32", "2001:db8::1/128", "2001:db8::2/64", "2001:db8::a/128"}; !slices.Equal(got, want) {
		t.Errorf("eth1 has %v, want %v", got, want)
	}
	if left, err := Addresses(bridge); err != nil || len(left) > 0 {
		t.Error(errors.Join(err, errors.New("the bridge keeps addresses")), left)
	}
}
