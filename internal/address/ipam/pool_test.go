// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

func poolOf(t *testing.T, name string, ips ...string) Pool {
	t.Helper()
	ranges, err := ipfamily.ParseRanges(ips)
	if err != nil {
		t.Fatal(err)
	}
	return Pool{Name: name, Ranges: ranges}
}

func TestAPoolDecidesByTheFamiliesOfItsIPs(t *testing.T) {
	const dual, gateways = "10.0.0.0/28,fd00::/124", "10.0.0.1,fd00::1"
	for _, c := range []struct {
		name     string
		subnet   Subnet
		pools    []Pool
		request  []string
		families []ipfamily.Family
		want     string // addresses, or the error
	}{
		{name: "an IPv4 pool leaves IPv6 to the rest of the subnet", subnet: spec(t, dual, gateways),
			pools: []Pool{poolOf(t, "a", "10.0.0.9")}, request: []string{"a"}, want: "10.0.0.9,fd00::2"},
		{name: "a pool of both families gives both", subnet: spec(t, dual, gateways),
			pools: []Pool{poolOf(t, "a", "10.0.0.9", "fd00::9")}, request: []string{"a"}, want: "10.0.0.9,fd00::9"},
		{name: "a pool with every address excluded gives none", subnet: spec(t, "10.0.0.0/28", "10.0.0.1", "10.0.0.9"),
			pools: []Pool{poolOf(t, "a", "10.0.0.9")}, request: []string{"a"}, want: "subnet s: port p: no free address of family IPv4 in IPPool a"},
		{name: "a pool with one family excluded gives none", subnet: spec(t, dual, gateways, "fd00::9"),
			pools: []Pool{poolOf(t, "a", "10.0.0.9", "fd00::9")}, request: []string{"a"}, want: "subnet s: port p: no free address of family IPv6 in IPPool a"},
		{name: "the excluded family does not matter to a request for the other one", subnet: spec(t, dual, gateways, "fd00::9"),
			pools: []Pool{poolOf(t, "a", "10.0.0.9", "fd00::9")}, request: []string{"a"}, families: []ipfamily.Family{ipfamily.IPv4}, want: "10.0.0.9"},
		{name: "of two pools the one with addresses left is used", subnet: spec(t, "10.0.0.0/28", "10.0.0.1", "10.0.0.9"),
			pools: []Pool{poolOf(t, "a", "10.0.0.9"), poolOf(t, "b", "10.0.0.10")}, request: []string{"a", "b"}, want: "10.0.0.10"},
		{name: "an IPv6 pool does not replace an excluded IPv4 pool", subnet: spec(t, dual, gateways, "10.0.0.9"),
			pools: []Pool{poolOf(t, "a", "10.0.0.9"), poolOf(t, "b", "fd00::9")}, request: []string{"a", "b"},
			want: "subnet s: port p: no free address of family IPv4 in IPPool a, b"},
		{name: "a pool inside of an earlier pool gives none", subnet: spec(t, "10.0.0.0/28", "10.0.0.1"),
			pools: []Pool{poolOf(t, "a", "10.0.0.8/30"), poolOf(t, "b", "10.0.0.9")}, request: []string{"b"},
			want: "subnet s: port p: no free address of family IPv4 in IPPool b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := with(t, c.subnet)
			if err := a.SetPools("s", c.pools); err != nil {
				t.Fatal(err)
			}
			l, err := a.Allocate("p", Request{Subnet: "s", Pools: c.request, Families: c.families})
			got := ipfamily.Join(l.Addresses)
			if err != nil {
				got = err.Error()
				if !errors.Is(err, ErrExhausted) {
					t.Errorf("%v is not ErrExhausted", err)
				}
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestAnAddressOfAPoolIsForRequestsThatNameThePool(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/28", "10.0.0.1"))
	if err := a.SetPools("s", []Pool{poolOf(t, "a", "10.0.0.9"), poolOf(t, "b", "10.0.0.10")}); err != nil {
		t.Fatal(err)
	}
	request := func(pools ...string) Request {
		r := static("10.0.0.9")
		r.Pools = pools
		return r
	}
	for name, r := range map[string]Request{"no pool": request(), "another pool": request("b")} {
		taken := (*TakenError)(nil)
		if _, err := a.Allocate("p", r); !errors.As(err, &taken) || taken.By != "IPPool a" {
			t.Errorf("a request that names %s: %v", name, err)
		}
	}
	if l, err := a.Allocate("p", request("b", "a")); err != nil || ipfamily.Join(l.Addresses) != "10.0.0.9" {
		t.Errorf("a request that names the pool gets %v: %v", l.Addresses, err)
	}
}
