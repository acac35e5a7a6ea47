// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/bridges/renewal"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// limited is the journal of a bridge with one address, of which a part of its 32 s is left.
func limited(left time.Duration) *Journal {
	address := netip.MustParsePrefix("192.0.2.50/24")
	return &Journal{
		Bridge: "none", Phase: PhaseMoved, Before: kernel.State{Addresses: []kernel.Address{{Prefix: address, Valid: kernel.SinceBoot() + left}}},
		Renewals: []renewal.Renewal{{Address: address.Addr(), Duration: 32 * time.Second}},
	}
}

func TestAGuardReturnsAnAddressThatNothingRenews(t *testing.T) {
	for left, want := range map[time.Duration]bool{time.Second: true, -time.Second: true, 20 * time.Second: false} {
		g := &Guard{Grace: time.Minute, missing: map[string]time.Time{}}
		if due, _ := g.due(limited(left)); due != want {
			t.Errorf("with %s left, it is due: %t, want %t", left, due, want)
		}
	}
}

func TestTheKernelDoesNotFollowAdvertisementsWhereKilnDoes(t *testing.T) {
	ipv4 := renewal.Renewal{Address: netip.MustParseAddr("192.0.2.50")}
	for want, renewals := range map[string][]renewal.Renewal{"2": {ipv4}, "0": {ipv4, {}}} {
		j := &Journal{Before: kernel.State{Settings: map[string]string{"ipv6/conf/IF/accept_ra": "2"}}, Renewals: renewals}
		if got := j.bridgeSettings()["ipv6/conf/IF/accept_ra"]; got != want {
			t.Errorf("with %v, accept_ra of the bridge is %q, want %q", renewals, got, want)
		}
	}
}

// byRouter is a default route as the kernel makes it from an advertisement.
func byRouter(address string, metric int, preference uint8) kernel.Route {
	return kernel.Route{
		Family: 6, Gateway: netip.MustParseAddr(address), Protocol: unix.RTPROT_RA, Table: unix.RT_TABLE_MAIN, Priority: metric,
		Expires: kernel.SinceBoot() + 1000*time.Second, Preference: preference,
	}
}

// TestRoutesOfTwoRoutersMove moves default routes by two routers, with an MTU, away from an interface and back, while another interface has one with their metric.
func TestRoutesOfTwoRoutersMove(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link, bridge, other := nodetest.Veth(t, "eth1"), nodetest.Veth(t, "br-net1"), nodetest.Veth(t, "eth2")
	foreign := kernel.Route{Family: 6, Table: unix.RT_TABLE_MAIN, Priority: 1024, Protocol: unix.RTPROT_STATIC} // like a route of the kernel, never part of a multipath route
	addRoutes(t, other, foreign)
	a, b := byRouter("fe80::1", 1024, 0), byRouter("fe80::2", 1025, 1)
	a.MTU, a.AdvMSS = 1400, 1300
	addRoutes(t, link, a, b)
	before := must.Value(kernel.Read(link))
	if len(before.Routes) != 2 || !contains(before.Routes, a) || !contains(before.Routes, b) {
		t.Fatalf("routes: %+v", before.Routes)
	}
	for _, r := range before.Routes {
		if r.Preference == 1 != (r.Gateway == b.Gateway) || r.MTU == 1400 != (r.Gateway == a.Gateway) || r.Expires == 0 {
			t.Errorf("route: %+v", r)
		}
	}
	d := Directory{Path: filepath.Join(t.TempDir(), "uplinks")}
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseMoved, Before: before}))
	holds := func(link netlink.Link) {
		t.Helper()
		if has := must.Value(configuration(link)); len(has.Routes) != 2 || !contains(has.Routes, a) || !contains(has.Routes, b) {
			t.Errorf("%s has %+v", link.Attrs().Name, has.Routes)
		}
		if has := must.Value(configuration(other)); !contains(has.Routes, foreign) {
			t.Errorf("the other interface has %+v", has.Routes)
		}
	}
	for range 2 { // a second pass changes nothing
		if _, err := d.Move(t.Context(), "br-net1"); err != nil {
			t.Fatal(err)
		}
		holds(bridge)
	}
	later := renewal.Renewal{At: kernel.SinceBoot() + time.Hour}
	for i := range before.Routes {
		before.Routes[i].Expires += later.At
	}
	addRoutes(t, bridge, before.Routes...) // a renewal
	holds(bridge)
	for _, r := range must.Value(configuration(bridge)).Routes {
		if r.Expires < later.At {
			t.Errorf("%s was not renewed: %s", r, r.Expires)
		}
	}
	if _, err := d.Move(t.Context(), "br-net1"); err != nil { // reads the new ends
		t.Fatal(err)
	}
	must.Succeed(t, d.PutBack(t.Context(), "br-net1", "test"))
	holds(link)
	if has := must.Value(configuration(bridge)); len(has.Routes) > 0 {
		t.Errorf("the bridge keeps %+v", has.Routes)
	}
}
