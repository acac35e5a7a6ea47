// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"net/netip"
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
		missing string
	}{
		"nothing that ends":            {state: State{Addresses: Plain([]netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")})}},
		"an IPv4 address of DHCP":      {state: address("192.0.2.50/24")},
		"an address of a prefix":       {state: address("2001:db8:1::7/64"), want: time.Minute},
		"an address of DHCPv6":         {state: address("2001:db8:1::7/128"), missing: "the address 2001:db8:1::7/128"},
		"a prefix for DHCPv6":          {state: address("2001:db8:2::7/64"), missing: "the address 2001:db8:2::7/64"},
		"another prefix":               {state: address("2001:db8:3::7/64"), missing: "the address 2001:db8:3::7/64"},
		"a default route":              {state: route("", router, ""), want: 30 * time.Minute},
		"one by a router that is none": {state: route("", netip.MustParseAddr("fe80::2"), ""), missing: "the route default via fe80::2"},
		"a route to more networks":     {state: route("2001:db8:9::/48", router, ""), want: 20 * time.Minute},
		"a route to others":            {state: route("2001:db8:8::/48", router, ""), missing: "the route 2001:db8:8::/48 via fe80::1"},
		"the network of the interface": {state: route("2001:db8:2::/64", netip.Addr{}, ""), want: time.Hour},
		"a multipath route":            {state: route("", netip.Addr{}, formatHops([]hop{{Gateway: router}})), missing: "the route default via fe80::1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, missing := c.state.advertised(seen); got != c.want || missing != c.missing {
				t.Errorf("for %s, missing %q; want %s, %q", got, missing, c.want, c.missing)
			}
		})
	}
}

func TestARouteReturnsWithAnotherMetricWhereTheKernelMakesIts(t *testing.T) {
	r := Route{Family: 6, Gateway: netip.MustParseAddr("fe80::1"), Protocol: unix.RTPROT_RA, Priority: 1024, Expires: time.Hour}
	for value, want := range map[string]int{"0": 1024, "1": 1025, "2": 1025, "": 1024} {
		s := State{Routes: []Route{r}, Settings: map[string]string{acceptRA: value}}
		if got := s.ofUplink(r).Priority; got != want {
			t.Errorf("with accept_ra %q, the metric is %d; want %d", value, got, want)
		}
		if got := s.ofBridge()[acceptRA]; got != "0" {
			t.Errorf("accept_ra of the bridge is %q", got)
		}
	}
	if got := (State{Settings: map[string]string{acceptRA: "2"}}).ofBridge()[acceptRA]; got != "2" {
		t.Errorf("accept_ra of a bridge without such routes is %q", got)
	}
}
