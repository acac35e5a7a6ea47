// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"
)

func TestWhatRoutersAdvertise(t *testing.T) {
	router := netip.MustParseAddr("fe80::1")
	prefix := func(p string, onLink, autonomous bool) ndp.Option {
		n := netip.MustParsePrefix(p)
		return &ndp.PrefixInformation{
			Prefix: n.Addr(), PrefixLength: uint8(n.Bits()), OnLink: onLink, AutonomousAddressConfiguration: autonomous, ValidLifetime: time.Hour, PreferredLifetime: time.Minute,
		}
	}
	seen := []advertisement{
		{router, &ndp.RouterAdvertisement{RouterLifetime: 30 * time.Minute, Options: []ndp.Option{
			prefix("2001:db8:1::/64", true, true), prefix("2001:db8:2::/64", true, false),
			&ndp.PrefixInformation{Prefix: netip.MustParseAddr("2001:db8:4::"), PrefixLength: 64, AutonomousAddressConfiguration: true, ValidLifetime: time.Minute, PreferredLifetime: time.Hour},
			&ndp.RouteInformation{Prefix: netip.MustParseAddr("2001:db8:9::"), PrefixLength: 48, RouteLifetime: 20 * time.Minute},
		}}},
		{netip.MustParseAddr("fe80::2"), &ndp.RouterAdvertisement{}}, // not a default router
	}
	address := func(p string) State {
		return State{Addresses: []Address{{Prefix: netip.MustParsePrefix(p), Valid: 1}}}
	}
	route := func(destination string, gateway netip.Addr, hops hops) State {
		r := Route{Family: 6, Gateway: gateway, Protocol: unix.RTPROT_RA, Hops: hops}
		if destination != "" {
			r.Destination = netip.MustParsePrefix(destination)
		}
		return State{Routes: []Route{r}}
	}
	for name, c := range map[string]struct {
		state   State
		want    time.Duration
		missing []unanswered
	}{
		"nothing that ends":          {state: State{Addresses: Plain([]netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")})}},
		"an IPv4 address of DHCP":    {state: address("192.0.2.50/24")},
		"an address of a prefix":     {state: address("2001:db8:1::7/64"), want: time.Minute},
		"an address of DHCPv6":       {state: address("2001:db8:1::7/128"), missing: []unanswered{{kindSingle, "the address 2001:db8:1::7/128 of a DHCP server", true}}},
		"a prefix for DHCPv6":        {state: address("2001:db8:2::7/64"), missing: []unanswered{{kindAddress, "the address 2001:db8:2::7/64", true}}},
		"another prefix":             {state: address("2001:db8:3::7/64"), missing: []unanswered{{kindAddress, "the address 2001:db8:3::7/64", true}}},
		"a prefix that hosts ignore": {state: address("2001:db8:4::7/64"), missing: []unanswered{{kindAddress, "the address 2001:db8:4::7/64", true}}},
		"two routers, one of which has gone": {
			state: State{Routes: append(route("", router, "").Routes, route("", netip.MustParseAddr("fe80::2"), "").Routes...)},
			want:  30 * time.Minute, missing: []unanswered{{kindDefault, "the route default via fe80::2", false}},
		},
		"a default route":              {state: route("", router, ""), want: 30 * time.Minute},
		"one by a router that is none": {state: route("", netip.MustParseAddr("fe80::2"), ""), missing: []unanswered{{kindDefault, "the route default via fe80::2", true}}},
		"a route to more networks":     {state: route("2001:db8:9::/48", router, ""), want: 20 * time.Minute},
		"a route to others":            {state: route("2001:db8:8::/48", router, ""), missing: []unanswered{{kindNetwork, "the route 2001:db8:8::/48 via fe80::1", true}}},
		"the network of the interface": {state: route("2001:db8:2::/64", netip.Addr{}, ""), want: time.Hour},
		"a multipath route":            {state: route("", netip.Addr{}, formatHops([]hop{{Gateway: router}})), missing: []unanswered{{kindDefault, "the route default via fe80::1", true}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, missing := c.state.advertised(seen); got != c.want || !slices.Equal(missing, c.missing) {
				t.Errorf("for %s, missing %v; want %s, %v", got, missing, c.want, c.missing)
			}
		})
	}
}

func TestARouteReturnsWithAnotherMetricWhereTheKernelMakesIts(t *testing.T) {
	r := Route{Family: 6, Gateway: netip.MustParseAddr("fe80::1"), Protocol: unix.RTPROT_RA, Priority: 1024, Expires: time.Hour}
	for _, c := range []struct {
		accept, metric string
		want           int
	}{
		{"0", "", 1024}, {"1", "", 1025}, {"2", "", 1025}, {"", "", 1024}, {"2", "1024", 1025}, {"2", "1000", 1025}, {"2", "2048", 1024},
	} {
		s := State{Routes: []Route{r}, Settings: map[string]string{acceptRA: c.accept, metricRA: c.metric}}
		if got := s.ofUplink(r).Priority; got != c.want {
			t.Errorf("with accept_ra %q and the kernel's metric %q, the metric is %d; want %d", c.accept, c.metric, got, c.want)
		}
	}
	more := r
	more.Destination = netip.MustParsePrefix("2001:db8:9::/48")
	if got := (State{Settings: map[string]string{acceptRA: "2", metricRA: "2048"}}).ofUplink(more).Priority; got != 1025 {
		t.Errorf("the metric of a route to more networks is %d", got)
	}
}

func TestTheKernelDoesNotFollowAdvertisementsWhereKilnDoes(t *testing.T) {
	leased := Lease{Address: netip.MustParseAddr("192.0.2.50")}
	for want, leases := range map[string][]Lease{"2": {leased}, "0": {leased, {}}} {
		j := &Journal{Before: State{Settings: map[string]string{acceptRA: "2"}}, Leases: leases}
		if got := j.bridgeSettings()[acceptRA]; got != want {
			t.Errorf("with %v, accept_ra of the bridge is %q, want %q", leases, got, want)
		}
	}
}

func TestARenewalMakesNoLifetimeShorter(t *testing.T) {
	prefix, router := netip.MustParsePrefix("2001:db8:1::/64"), netip.MustParseAddr("fe80::1")
	at := 10 * time.Hour
	answer := func(lifetime time.Duration) Lease {
		return Lease{At: at, seen: []advertisement{{router, &ndp.RouterAdvertisement{RouterLifetime: lifetime, Options: []ndp.Option{&ndp.PrefixInformation{
			Prefix: prefix.Addr(), PrefixLength: 64, AutonomousAddressConfiguration: true, ValidLifetime: lifetime, PreferredLifetime: lifetime / 2,
		}}}}}}
	}
	leased := netip.MustParsePrefix("192.0.2.50/24")
	for name, c := range map[string]struct {
		answer               Lease
		valid, preferred, v4 time.Duration
	}{
		"a shorter one":      {answer(time.Second), at + time.Hour, at + time.Minute, at + time.Hour},
		"a longer one":       {answer(4 * time.Hour), at + 4*time.Hour, at + 2*time.Hour, at + time.Hour},
		"one without end":    {answer(forever * time.Second), at + longestLease, at + longestLease, at + time.Hour},
		"one of DHCP":        {Lease{Address: leased.Addr(), Duration: 2 * time.Hour, At: at}, at + time.Hour, at + time.Minute, at + 2*time.Hour},
		"a shorter of DHCP":  {Lease{Address: leased.Addr(), Duration: time.Minute, At: at}, at + time.Hour, at + time.Minute, at + time.Hour},
		"of another address": {Lease{Address: netip.MustParseAddr("192.0.2.51"), Duration: 2 * time.Hour, At: at}, at + time.Hour, at + time.Minute, at + time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{
				Addresses: []Address{
					{Prefix: netip.MustParsePrefix("2001:db8:1::7/64"), Valid: at + time.Hour, Preferred: at + time.Minute},
					{Prefix: leased, Valid: at + time.Hour, Preferred: at + time.Hour}, {Prefix: netip.MustParsePrefix("2001:db8:1::8/64")},
				},
				Routes: []Route{{Family: 6, Gateway: router, Protocol: unix.RTPROT_RA, Expires: at + time.Hour}},
			}
			got := s.Renewed(c.answer)
			if a := got.Addresses[0]; a.Valid != c.valid || a.Preferred != c.preferred {
				t.Errorf("the address is valid until %s and preferred until %s; want %s and %s", a.Valid, a.Preferred, c.valid, c.preferred)
			}
			if a := got.Addresses[1]; a.Valid != c.v4 || a.Preferred != c.v4 {
				t.Errorf("the address of DHCP is valid until %s; want %s", a.Valid, c.v4)
			}
			if a := got.Addresses[2]; a.Valid != 0 || a.Preferred != 0 {
				t.Errorf("a static address ends at %s", a.Valid)
			}
			if end := got.Routes[0].Expires; end != c.valid {
				t.Errorf("the route ends at %s, want %s", end, c.valid)
			}
			if s.Addresses[0].Valid != at+time.Hour {
				t.Error("the state was changed")
			}
		})
	}
}
