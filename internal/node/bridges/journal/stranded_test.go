// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

func texts(prefixes []netip.Prefix) (list []string) {
	for _, p := range prefixes {
		list = append(list, p.String())
	}
	return list
}

// TestAddressesOfASingleHostAfterAMove adds such addresses to an interface that has moved with one that is the only one of its family.
func TestAddressesOfASingleHostAfterAMove(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link, bridge := nodetest.Veth(t, "eth1"), nodetest.Veth(t, "br-net1")
	nodetest.AddAddresses(t, link, 0, "192.0.2.1/24", "2001:db8::1/128")
	before := must.Value(kernel.Read(link))
	d := Directory{Path: t.TempDir()}
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseMoved, Before: before}))
	_, err := d.Move(t.Context(), "br-net1")
	must.Succeed(t, err)
	check := func(when string, moved, stranded []string) {
		t.Helper()
		if _, err := d.Move(t.Context(), "br-net1"); err != nil {
			t.Fatal(when, err)
		}
		if got := texts(kernel.Prefixes(must.Value(d.Read("br-net1")).Before.Addresses)); !slices.Equal(got, moved) {
			t.Errorf("%s, %v have moved, want %v", when, got, moved)
		}
		if got := texts(must.Value(d.Stranded("br-net1"))); !slices.Equal(got, stranded) {
			t.Errorf("%s, %v are stranded, want %v", when, got, stranded)
		}
	}
	check("after the move", []string{"192.0.2.1/24", "2001:db8::1/128"}, nil)
	nodetest.AddAddresses(t, link, 0, "2001:db8::2/64")
	all := []string{"192.0.2.1/24", "2001:db8::1/128", "2001:db8::2/64"}
	check("with a wider one", all, nil)
	nodetest.AddAddresses(t, link, 0, "2001:db8::9/128", "192.0.2.9/32")
	check("with virtual ones", all, []string{"2001:db8::9/128"})
	must.Succeed(t, netlink.AddrDel(link, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("2001:db8::9/128"))}))
	check("without the IPv6 one", all, nil)
	nodetest.AddAddresses(t, link, 1000, "2001:db8::a/128")
	check("with one of a DHCP server", append(all, "2001:db8::a/128"), nil)
	must.Succeed(t, d.PutBack(t.Context(), "br-net1", "test"))
	got := texts(kernel.Prefixes(must.Value(kernel.Addresses(link))))
	slices.Sort(got)
	if want := []string{"192.0.2.1/24", "192.0.2.9/32", "2001:db8::1/128", "2001:db8::2/64", "2001:db8::a/128"}; !slices.Equal(got, want) {
		t.Errorf("eth1 has %v, want %v", got, want)
	}
	if left, err := kernel.Addresses(bridge); err != nil || len(left) > 0 {
		t.Error(errors.Join(err, errors.New("the bridge keeps addresses")), left)
	}
}
