// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package renewal

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
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
	address := func(p string) kernel.State {
		return kernel.State{Addresses: []kernel.Address{{Prefix: netip.MustParsePrefix(p), Valid: 1}}}
	}
	route := func(destination string, gateway netip.Addr, multipath bool) kernel.State {
		r := kernel.Route{Family: 6, Gateway: gateway, Protocol: unix.RTPROT_RA}
		if multipath {
			r.Hops = `[{"gateway":"fe80::1"}]`
		}
		if destination != "" {
			r.Destination = netip.MustParsePrefix(destination)
		}
		return kernel.State{Routes: []kernel.Route{r}}
	}
	for name, c := range map[string]struct {
		state   kernel.State
		want    time.Duration
		missing []unanswered
	}{
		"nothing that ends":          {state: kernel.State{Addresses: kernel.Plain([]netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")})}},
		"an IPv4 address of DHCP":    {state: address("192.0.2.50/24")},
		"an address of a prefix":     {state: address("2001:db8:1::7/64"), want: time.Minute},
		"an address of DHCPv6":       {state: address("2001:db8:1::7/128"), missing: []unanswered{{kindSingle, "the address 2001:db8:1::7/128 of a DHCP server", true}}},
		"a prefix for DHCPv6":        {state: address("2001:db8:2::7/64"), missing: []unanswered{{kindAddress, "the address 2001:db8:2::7/64", true}}},
		"another prefix":             {state: address("2001:db8:3::7/64"), missing: []unanswered{{kindAddress, "the address 2001:db8:3::7/64", true}}},
		"a prefix that hosts ignore": {state: address("2001:db8:4::7/64"), missing: []unanswered{{kindAddress, "the address 2001:db8:4::7/64", true}}},
		"two routers, one of which has gone": {
			state: kernel.State{Routes: append(route("", router, false).Routes, route("", netip.MustParseAddr("fe80::2"), false).Routes...)},
			want:  30 * time.Minute, missing: []unanswered{{kindDefault, "the route default via fe80::2", false}},
		},
		"a default route":              {state: route("", router, false), want: 30 * time.Minute},
		"one by a router that is none": {state: route("", netip.MustParseAddr("fe80::2"), false), missing: []unanswered{{kindDefault, "the route default via fe80::2", true}}},
		"a route to more networks":     {state: route("2001:db8:9::/48", router, false), want: 20 * time.Minute},
		"a route to others":            {state: route("2001:db8:8::/48", router, false), missing: []unanswered{{kindNetwork, "the route 2001:db8:8::/48 via fe80::1", true}}},
		"the network of the interface": {state: route("2001:db8:2::/64", netip.Addr{}, false), want: time.Hour},
		"a multipath route":            {state: route("", netip.Addr{}, true), missing: []unanswered{{kindDefault, "the route default via fe80::1", true}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, missing := advertised(c.state, seen); got != c.want || !slices.Equal(missing, c.missing) {
				t.Errorf("for %s, missing %v; want %s, %v", got, missing, c.want, c.missing)
			}
		})
	}
}

func TestARenewalMakesNoLifetimeShorter(t *testing.T) {
	prefix, router := netip.MustParsePrefix("2001:db8:1::/64"), netip.MustParseAddr("fe80::1")
	at := 10 * time.Hour
	answer := func(lifetime time.Duration) Renewal {
		return Renewal{At: at, seen: []advertisement{{router, &ndp.RouterAdvertisement{RouterLifetime: lifetime, Options: []ndp.Option{&ndp.PrefixInformation{
			Prefix: prefix.Addr(), PrefixLength: 64, AutonomousAddressConfiguration: true, ValidLifetime: lifetime, PreferredLifetime: lifetime / 2,
		}}}}}}
	}
	leased := netip.MustParsePrefix("192.0.2.50/24")
	for name, c := range map[string]struct {
		answer               Renewal
		valid, preferred, v4 time.Duration
	}{
		"a shorter one":      {answer(time.Second), at + time.Hour, at + time.Minute, at + time.Hour},
		"a longer one":       {answer(4 * time.Hour), at + 4*time.Hour, at + 2*time.Hour, at + time.Hour},
		"one without end":    {answer((1<<32 - 1) * time.Second), at + longest, at + longest, at + time.Hour},
		"one of DHCP":        {Renewal{Address: leased.Addr(), Duration: 2 * time.Hour, At: at}, at + time.Hour, at + time.Minute, at + 2*time.Hour},
		"a shorter of DHCP":  {Renewal{Address: leased.Addr(), Duration: time.Minute, At: at}, at + time.Hour, at + time.Minute, at + time.Hour},
		"of another address": {Renewal{Address: netip.MustParseAddr("192.0.2.51"), Duration: 2 * time.Hour, At: at}, at + time.Hour, at + time.Minute, at + time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			s := kernel.State{
				Addresses: []kernel.Address{
					{Prefix: netip.MustParsePrefix("2001:db8:1::7/64"), Valid: at + time.Hour, Preferred: at + time.Minute},
					{Prefix: leased, Valid: at + time.Hour, Preferred: at + time.Hour}, {Prefix: netip.MustParsePrefix("2001:db8:1::8/64")},
				},
				Routes: []kernel.Route{{Family: 6, Gateway: router, Protocol: unix.RTPROT_RA, Expires: at + time.Hour}},
			}
			got := c.answer.Extend(s)
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

func TestTimesOfARenewal(t *testing.T) {
	for left, want := range map[time.Duration]bool{5 * time.Second: false, 3 * time.Second: true} {
		r := Renewal{Duration: 32 * time.Second, Left: left}
		if (r.LostAfter() <= 0) != want || r.RenewAfter() > 0 || r.GuardAfter() <= r.LostAfter() {
			t.Errorf("with %s left, it is lost after %s, want now: %t, is renewed after %s, and a guard acts after %s", left, r.LostAfter(), want, r.RenewAfter(), r.GuardAfter())
		}
	}
}

// TestAShortAnswer has an answer of one second to a renewal of an hour, of which half an hour is left.
func TestAShortAnswer(t *testing.T) {
	now := kernel.SinceBoot()
	l := Renewal{Duration: time.Second, At: now, Longest: time.Hour, Left: 30 * time.Minute}
	if after := l.RenewAfter(); after > time.Second/2 {
		t.Errorf("it is renewed after %s", after)
	}
	if after := l.LostAfter(); after != 30*time.Minute-leastReturn {
		t.Errorf("it is lost after %s", after)
	}
	l = Renewal{Duration: 5 * time.Minute, At: now, Longest: 24 * time.Hour, Left: 5 * time.Minute} // a server with shorter leases
	if after := l.LostAfter(); after < 4*time.Minute {
		t.Errorf("a shorter one is lost after %s", after)
	}
}

func TestOneEntryOfEachKindCounts(t *testing.T) {
	const now = time.Hour
	router := func(ends time.Duration) kernel.Route {
		return kernel.Route{Family: 6, Gateway: netip.MustParseAddr("fe80::1"), Protocol: unix.RTPROT_RA, Expires: now + ends}
	}
	s := kernel.State{Routes: []kernel.Route{router(time.Minute), router(time.Hour)}, Addresses: []kernel.Address{
		{Prefix: netip.MustParsePrefix("2001:db8::1/64"), Valid: now + 20*time.Minute, Preferred: now + 10*time.Minute},
		{Prefix: netip.MustParsePrefix("2001:db8:1::1/64"), Valid: now + time.Second},
	}}
	if left, limited := (Renewal{}).left(s, now); left != 10*time.Minute || !limited {
		t.Errorf("left %s, %t", left, limited)
	}
	s.Routes = s.Routes[:1]
	if left, limited := (Renewal{}).left(s, now); left != time.Minute || !limited {
		t.Errorf("with one router, left %s, %t", left, limited)
	}
}

// TestAnAddressOfASingleHostEndsAlone has an address from a DHCP server that came after a move: no router advertises it, and its end returns no interface.
func TestAnAddressOfASingleHostEndsAlone(t *testing.T) {
	const now = time.Hour
	s := kernel.State{
		Routes:    []kernel.Route{{Family: 6, Gateway: netip.MustParseAddr("fe80::1"), Protocol: unix.RTPROT_RA, Expires: now + time.Hour}},
		Addresses: []kernel.Address{{Prefix: netip.MustParsePrefix("2001:db8::9/128"), Valid: now + time.Second}},
	}
	if left, limited := (Renewal{}).left(s, now); left != time.Hour || !limited {
		t.Errorf("left %s, %t", left, limited)
	}
}
