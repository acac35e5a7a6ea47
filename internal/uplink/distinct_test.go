// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/eventually"
	"github.com/kiln-net/kiln/internal/must"
	"github.com/kiln-net/kiln/internal/nodetest"
)

// byRouter is a default route as the kernel makes it from an advertisement.
func byRouter(address string, metric int, preference uint8) Route {
	return Route{
		Family: 6, Gateway: netip.MustParseAddr(address), Protocol: unix.RTPROT_RA, Table: unix.RT_TABLE_MAIN, Priority: metric,
		Expires: sinceBoot() + 1000*time.Second, Preference: preference,
	}
}

func TestDistinct(t *testing.T) {
	static := Route{Family: 6, Gateway: netip.MustParseAddr("fe80::9"), Priority: 1025}
	ipv4 := Route{Family: 4, Gateway: netip.MustParseAddr("192.0.2.254"), Priority: 1024}
	list := []Route{byRouter("fe80::1", 1024, 3), byRouter("fe80::2", 1024, 0), byRouter("fe80::3", 1024, 1), byRouter("fe80::2", 1025, 0), static, ipv4}
	for i := range list {
		list[i].Table = unix.RT_TABLE_MAIN
	}
	var got []string
	made := distinct(list, map[place]bool{{table: unix.RT_TABLE_MAIN, priority: 1026}: true})
	for _, r := range made {
		got = append(got, r.String())
	}
	var metrics []int
	for _, r := range made[2:] {
		metrics = append(metrics, r.Priority)
	}
	want := []string{"default via fe80::9", "default via 192.0.2.254", "default via fe80::3", "default via fe80::2", "default via fe80::1"}
	if !slices.Equal(got, want) || !slices.Equal(metrics, []int{1024, 1027, 1028}) {
		t.Errorf("routes %q with metrics %v", got, metrics)
	}
	if again := distinct(made, nil); !slices.Equal(again, made) {
		t.Errorf("a repetition changes them to %+v", again)
	}
}

// TestRoutesOfTwoRoutersMove moves default routes by two routers, with an MTU, away from an interface and back, while another interface has one with their metric.
func TestRoutesOfTwoRoutersMove(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link, bridge, other := made(t, "eth1"), made(t, "br-net1"), made(t, "eth2")
	foreign := Route{Family: 6, Table: unix.RT_TABLE_MAIN, Priority: 1024, Protocol: unix.RTPROT_STATIC} // like a route of the kernel, never part of a multipath route
	must.Succeed(t, foreign.add(other, unix.NLM_F_REPLACE))
	a, b := byRouter("fe80::1", 1024, 0), byRouter("fe80::2", 1025, 1)
	a.MTU, a.AdvMSS = 1400, 1300
	for _, r := range []Route{a, b} {
		must.Succeed(t, r.replace(link, nil))
	}
	before := must.Value(Read(link))
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
		if has := must.Value(configuration(link)); len(has.Routes) != 2 || len(without(before.Routes, has.Routes)) > 0 {
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
	later := Lease{At: sinceBoot() + time.Hour}
	for i := range before.Routes {
		before.Routes[i].Expires += later.At
	}
	for _, r := range before.Routes { // a renewal
		must.Succeed(t, addRoute(bridge, nil, r, nil))
	}
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

// TestARouteThatHasEndedStaysOne reads a route whose end has come before the kernel has deleted it.
func TestARouteThatHasEndedStaysOne(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link := made(t, "eth1")
	r := byRouter("fe80::1", 1024, 0)
	r.Expires = sinceBoot() + time.Second
	must.Succeed(t, r.replace(link, nil))
	eventually.Wait{For: "the route ends"}.Succeeds(t, func() error {
		if sinceBoot() < r.Expires+time.Second/2 {
			return errors.New("not yet")
		}
		return nil
	})
	has := must.Value(Read(link)).Routes
	if len(has) != 1 || has[0].Expires == 0 || has[0].Expires > sinceBoot() {
		t.Fatalf("routes: %+v", has)
	}
	other := made(t, "eth2")
	must.Succeed(t, has[0].replace(other, nil))
	if got := must.Value(Read(other)).Routes; len(got) > 0 {
		t.Errorf("it was added: %+v", got)
	}
}
