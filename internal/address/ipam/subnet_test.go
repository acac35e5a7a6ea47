// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

func TestSetSubnetKeepsAllocations(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/30", "10.0.0.1"))
	allocate(t, a, "a")
	if err := a.SetSubnet("s", spec(t, "10.0.0.0/29,fd00::/64", "10.0.0.1", "10.0.0.2", "10.0.0.4")); err != nil {
		t.Fatal(err)
	}
	if got := allocate(t, a, "a"); got != "10.0.0.2" {
		t.Errorf("the allocation became %s", got)
	}
	if got := allocate(t, a, "b"); got != "10.0.0.3,fd00::1" {
		t.Errorf("after the expansion: got %s", got)
	}
	u := a.Usage("s")
	if u.IPv4() != (FamilyUsage{Available: 2, AvailableRanges: "10.0.0.5-10.0.0.6", Using: 2, UsingRanges: "10.0.0.2-10.0.0.3"}) {
		t.Errorf("usage: %+v", u.IPv4())
	}
	a.Release("a")
	if err := a.SetSubnet("s", spec(t, "10.7.0.0/30", "10.7.0.1")); err != nil {
		t.Fatal(err)
	}
	if l, ok := a.Lookup("b"); !ok || ipfamily.Join(l.Addresses) != "10.0.0.3,fd00::1" {
		t.Errorf("the allocation outside became %v", l)
	}
	a.Release("b")
	if u := a.Usage("s"); u.IPv4() != (FamilyUsage{Available: 1, AvailableRanges: "10.7.0.2"}) || u.IPv6() != (FamilyUsage{}) {
		t.Errorf("usage: %+v", u)
	}
	for _, bad := range []Subnet{{}, {CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("11.0.0.0/8")}},
		{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Gateways: []netip.Addr{netip.MustParseAddr("11.0.0.1")}}} {
		if err := a.SetSubnet("s", bad); err == nil {
			t.Errorf("%v must be refused", bad)
		}
	}
}

func TestDeleteSubnetForgetsItsAllocations(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/24", ""))
	allocate(t, a, "a")
	a.DeleteSubnet("s")
	a.DeleteSubnet("s")
	if _, ok := a.Lookup("a"); ok || a.HasSubnet("s") || a.Usage("s") != (Usage{}) {
		t.Error("something is left")
	}
	if err := a.SetSubnet("s", spec(t, "10.0.0.0/24", "")); err != nil || !a.HasSubnet("s") {
		t.Fatal(err)
	}
	if got := allocate(t, a, "b"); got != "10.0.0.1" {
		t.Errorf("got %s", got)
	}
}

func TestASubnetThatWouldLeaveAddressesOutStaysAsItIs(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/23,fd00::/64", "10.0.0.1,fd00::1"))
	allocate(t, a, "in.ns", "10.0.0.2")
	allocate(t, a, "out.ns", "10.0.1.9")
	small := spec(t, "10.0.0.0/24,fd00::/64", "10.0.0.1,fd00::1")
	outside := func(h Holder) bool { return !small.CIDRs[0].Contains(h.Address) && h.Address.Is4() }
	notified := 0
	a.Notify(func(string) { notified++ })
	held, err := a.ChangeSubnet("s", small, outside)
	if err != nil || len(held) != 1 || held[0].String() != "10.0.1.9 (out.ns)" || notified != 0 {
		t.Fatalf("%v hold the addresses (%v), %d notifications; want 10.0.1.9", held, err, notified)
	}
	if got := allocate(t, a, "more.ns", "10.0.1.10"); !strings.HasPrefix(got, "10.0.1.10") {
		t.Errorf("after a refused change a port gets %s", got)
	}
	a.Release("more.ns")
	a.Release("out.ns")
	if held, err := a.ChangeSubnet("s", small, outside); err != nil || len(held) != 0 {
		t.Fatalf("in the way are %v (%v), want nothing", held, err)
	}
	if _, err := a.Allocate("late.ns", static("10.0.1.9")); err == nil {
		t.Error("a port gets an address outside of the smaller CIDR")
	}
}
