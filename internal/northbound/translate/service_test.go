// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"testing"
)

func TestService(t *testing.T) { rowsOf(t, "service-", Service) }

func TestEndpointsKeepTheirPlaces(t *testing.T) {
	const before = "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80"
	now := func() []netip.AddrPort {
		return []netip.AddrPort{netip.MustParseAddrPort("10.0.0.3:80"), netip.MustParseAddrPort("10.0.0.4:80"), netip.MustParseAddrPort("10.0.0.1:80")}
	}
	for sticky, want := range map[bool]string{true: "10.0.0.1:80,10.0.0.4:80,10.0.0.3:80", false: "10.0.0.1:80,10.0.0.3:80,10.0.0.4:80"} {
		if got := list(now(), sticky, before); got != want {
			t.Errorf("with session affinity %v: %s, want %s", sticky, got, want)
		}
	}
}
