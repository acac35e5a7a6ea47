// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// The note stays until the entry is deleted, so that the next pass deletes it.
func TestAnAddressIsForgottenAfterItsEntry(t *testing.T) {
	nodetest.InNamespace(t, func(t *testing.T) {
		loopback, err := netlink.LinkByName("lo")
		must.Succeed(t, err)
		must.Succeed(t, netlink.LinkSetUp(loopback))
		address := netip.MustParseAddr("192.0.2.9")
		note := netlink.Route{
			Dst: netipx.PrefixIPNet(netip.PrefixFrom(address, 32)), Table: kernel.ClaimTable, Protocol: routeProtocol, Type: unix.RTN_UNREACHABLE, Priority: forwardedMetric,
		}
		must.Succeed(t, netlink.RouteAdd(&note))
		noted := func(want int) {
			t.Helper()
			found, err := notes(unix.RTN_UNREACHABLE)
			must.Succeed(t, err)
			if len(found) != want {
				t.Errorf("the notes are %v, want %d", found, want)
			}
		}
		if err := forget(address, note, map[proxy]bool{{address, 4711}: true}); err == nil {
			t.Error("an entry on an interface that does not exist was deleted")
		}
		noted(1)
		entry := proxy{address, loopback.Attrs().Index}
		must.Succeed(t, forget(address, note, map[proxy]bool{entry: true})) // the entry is deleted already
		noted(0)
	})
}
