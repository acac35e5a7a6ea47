// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestUsageOfAPool(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/24", "10.0.0.1"))
	set := func(subnet Subnet, pools ...Pool) {
		t.Helper()
		if err := errors.Join(a.SetSubnet("s", subnet), a.SetPools("s", pools)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(want FamilyUsage) {
		t.Helper()
		if got := a.PoolUsage("s", "a").IPv4(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	adjacent := poolOf(t, "a", "10.0.0.31..10.0.0.32", "10.0.0.33..10.0.0.34", "10.0.0.36")
	set(spec(t, "10.0.0.0/24", "10.0.0.1"), adjacent)
	want(FamilyUsage{Available: 5, AvailableRanges: "10.0.0.31-10.0.0.34,10.0.0.36"})

	if _, err := a.Allocate("p", Request{Subnet: "s", Pools: []string{"a"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.32")}}); err != nil {
		t.Fatal(err)
	}
	want(FamilyUsage{Available: 4, AvailableRanges: "10.0.0.31,10.0.0.33-10.0.0.34,10.0.0.36", Using: 1, UsingRanges: "10.0.0.32"})

	set(spec(t, "10.0.0.0/24", "10.0.0.1", "10.0.0.32"), adjacent)
	want(FamilyUsage{Available: 4, AvailableRanges: "10.0.0.31,10.0.0.33-10.0.0.34,10.0.0.36", Using: 1, UsingRanges: "10.0.0.32"})

	a.Release("p")
	want(FamilyUsage{Available: 4, AvailableRanges: "10.0.0.31,10.0.0.33-10.0.0.34,10.0.0.36"})
}

func TestUsageNamesABoundedNumberOfRanges(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/16,fd00::/64", "10.0.0.1,fd00::1"))
	for i := range 2 * MaxRanges {
		allocate(t, a, fmt.Sprint(i), fmt.Sprintf("10.0.%d.%d", 1+i/100, 2*(i%100)+2))
	}
	u := a.Usage("s")
	for _, s := range []string{u.IPv4().UsingRanges, u.IPv4().AvailableRanges} {
		if n := strings.Count(s, ","); n != MaxRanges || !strings.HasSuffix(s, ",...") {
			t.Errorf("%d ranges in %s", n, s)
		}
	}
	if u.IPv6().UsingRanges != "fd00::2-fd00::101" || u.IPv6().AvailableRanges != "fd00::102-fd00::ffff:ffff:ffff:ffff" {
		t.Errorf("IPv6: %+v", u.IPv6())
	}
	if u.IPv6().Available != 1<<64 {
		t.Errorf("a /64 has about 2^64 addresses, got %v", u.IPv6().Available)
	}
}
