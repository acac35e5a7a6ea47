// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

func TestMain(m *testing.M) { os.Exit(eventually.Main(m)) }

// configuration returns the addresses and routes of an interface.
func configuration(link netlink.Link) (kernel.State, error) {
	s, err := kernel.Read(link)
	return kernel.State{Addresses: s.Addresses, Routes: s.Routes, MTU: s.MTU, Promiscuous: s.Promiscuous}, err
}

// addRoutes adds routes, with their ends, to an interface.
func addRoutes(t *testing.T, link netlink.Link, list ...kernel.Route) {
	t.Helper()
	must.Succeed(t, kernel.Extend(link, kernel.State{Routes: make([]kernel.Route, len(list))}, kernel.State{Routes: list}, nil))
}

// contains reports whether a list has a route by the gateway of another one.
func contains(list []kernel.Route, r kernel.Route) bool {
	return slices.ContainsFunc(list, func(other kernel.Route) bool { return other.Gateway == r.Gateway && other.Destination == r.Destination })
}

// configured is an interface with one of each that a move has to preserve.
func configured(t *testing.T) netlink.Link {
	t.Helper()
	link := nodetest.Veth(t, "eth1")
	index := link.Attrs().Index
	for _, a := range []*netlink.Addr{
		{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("192.0.2.1/24")), Label: "eth1:main"},
		{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("198.51.100.1/25")), Broadcast: net.IPv4zero, Scope: unix.RT_SCOPE_SITE},
		{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("2001:db8::1/64")), Flags: unix.IFA_F_NODAD, ValidLft: 3000, PreferedLft: 2000},
		{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("2001:db8:1::1/64")), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE},
		{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("192.0.2.200/32"))},
	} {
		must.Succeed(t, netlink.AddrAdd(link, a))
	}
	for _, r := range []*netlink.Route{
		{LinkIndex: index, Dst: netipx.PrefixIPNet(netip.MustParsePrefix("2001:db8:1::/64")), Protocol: unix.RTPROT_KERNEL, Priority: 100},
		{LinkIndex: index, Gw: net.ParseIP("192.0.2.254"), Src: net.ParseIP("192.0.2.1"), MTU: 1300, AdvMSS: 1200},
		{LinkIndex: index, Gw: net.ParseIP("192.0.2.254"), Table: 100, Priority: 7},
		{LinkIndex: index, Dst: netipx.PrefixIPNet(netip.MustParsePrefix("10.8.0.0/16")), Via: &netlink.Via{AddrFamily: netlink.FAMILY_V6, Addr: net.ParseIP("fe80::7")}},
		{Dst: netipx.PrefixIPNet(netip.MustParsePrefix("10.9.0.0/16")), MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: index, Gw: net.ParseIP("192.0.2.254")}, {LinkIndex: index, Gw: net.ParseIP("192.0.2.253"), Hops: 3},
		}},
	} {
		must.Succeed(t, netlink.RouteAdd(r))
	}
	advertised := kernel.Route{Family: 6, Gateway: netip.MustParseAddr("fe80::1"), Protocol: unix.RTPROT_RA, Priority: 1024, Table: unix.RT_TABLE_MAIN, Expires: kernel.SinceBoot() + 1000*time.Second}
	addRoutes(t, link, advertised)
	must.Succeed(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: net.ParseIP("192.0.2.77"), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 7}, State: netlink.NUD_PERMANENT}))
	return link
}

// resolved adds a neighbour, which is not permanent.
func resolved(t *testing.T, link netlink.Link, mac byte) {
	t.Helper()
	must.Succeed(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: net.ParseIP("192.0.2.78"), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, mac}, State: netlink.NUD_STALE}))
}

// same compares states; times may differ by the seconds to which the kernel rounds them, and the metric of a route like the kernel's by one.
func same(want, got kernel.State) string {
	for _, s := range []*kernel.State{&want, &got} {
		s.Routes = slices.Clone(s.Routes)
		for i, r := range s.Routes {
			if r.Priority == 1024+1 {
				s.Routes[i].Priority = 1024
			}
		}
	}
	about := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < 5*time.Second })
	byKey := cmpopts.SortSlices(func(a, b kernel.Route) bool {
		return a.String()+strconv.Itoa(a.Table) < b.String()+strconv.Itoa(b.Table)
	})
	return cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), about, byKey)
}

func TestTheGuardRestoresEverythingAtTheDeadline(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link, bridge := configured(t), nodetest.Veth(t, "br-net1")
	resolved(t, link, 8)
	before := must.Value(kernel.Read(link))
	if len(before.Addresses) != 4 || len(before.Routes) != 6 || len(before.Neighbours) != 2 || before.MTU != 1450 {
		t.Fatalf("state: %+v", before)
	}
	if !slices.ContainsFunc(before.Routes, func(r kernel.Route) bool { return r.Expires > kernel.SinceBoot() }) {
		t.Errorf("no route has an end: %+v", before.Routes)
	}
	d := Directory{Path: filepath.Join(t.TempDir(), "uplinks")}
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: before, Deadline: Deadline(time.Second)}))
	if n, err := d.Move(t.Context(), "br-net1"); err != nil || n != 4 {
		t.Fatalf("moved %d: %v", n, err)
	}
	after := must.Value(kernel.Read(bridge))
	if len(after.Addresses) != 4 || len(after.Routes) != 5 || len(after.Neighbours) != 2 { // the route of an address is the kernel's there
		t.Errorf("the bridge has %+v", after)
	}
	if n, err := d.Move(t.Context(), "br-net1"); err != nil || n != 4 {
		t.Errorf("a repetition moved %d: %v", n, err)
	}
	left := must.Value(configuration(link))
	if !slices.Equal(kernel.Prefixes(left.Addresses), []netip.Prefix{netip.MustParsePrefix("192.0.2.200/32")}) || len(left.Routes) > 0 {
		t.Errorf("the interface keeps %+v, not only the virtual address", left)
	}
	resolved(t, bridge, 9)
	before.Neighbours[1].MAC = "02:00:00:00:00:09"
	must.Succeed(t, netlink.SetPromiscOn(link)) // as an ovs-vswitchd that was killed leaves it
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- (&Guard{Directory: d, Log: testr.New(t)}).Run(ctx) }()
	eventually.Wait{For: "the interface is as before"}.Succeeds(t, func() error {
		if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
			return errors.New(diff)
		}
		if must.Value(kernel.Link("eth1")).Attrs().RawFlags&unix.IFF_PROMISC != 0 {
			return errors.New("the interface is promiscuous")
		}
		if j, err := d.Read("br-net1"); err != nil || !j.Done || j.Failures != 1 {
			return errors.Join(errors.New("the journal is not complete"), err)
		}
		return nil
	})
	cancel()
	must.Succeed(t, <-done)
	if left := must.Value(configuration(bridge)); len(left.Addresses)+len(left.Routes) > 0 {
		t.Errorf("the bridge keeps %+v", left)
	}
	if err := d.Commit(t.Context(), "br-net1"); !errors.Is(err, ErrReturned) {
		t.Errorf("a move that was undone is completed: %v", err)
	}
	if _, err := d.Move(t.Context(), "br-net1"); !errors.Is(err, ErrReturned) {
		t.Errorf("a move that was undone continues: %v", err)
	}
}

// TestARestorationContinuesWhereverItsProcessEnds ends the agent, which restores an interface, before each step. The next process completes the restoration.
func TestARestorationContinuesWhereverItsProcessEnds(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	ended := errors.New("the process has ended")
	for kill := 1; ; kill++ {
		link, bridge := configured(t), nodetest.Veth(t, "br-net1")
		before := must.Value(kernel.Read(link))
		d := Directory{Path: filepath.Join(t.TempDir(), "uplinks")}
		must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: before, Deadline: Deadline(time.Hour)}))
		must.Value(d.Move(t.Context(), "br-net1"))
		agent, steps, last := d, 0, ""
		agent.Step = func(name string) error {
			if steps++; steps >= kill {
				return ended
			}
			last = name
			return nil
		}
		err := agent.PutBack(t.Context(), "br-net1", "its deadline has passed")
		if err != nil && !errors.Is(err, ended) {
			t.Fatal(err)
		}
		must.Succeed(t, d.PutBack(t.Context(), "br-net1", "its deadline has passed"))
		if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
			t.Errorf("ended before step %d, after %q, the interface is not as before:\n%s", kill, last, diff)
		}
		if left := must.Value(configuration(bridge)); len(left.Addresses)+len(left.Routes) > 0 {
			t.Errorf("ended before step %d, after %q, the bridge keeps %+v", kill, last, left)
		}
		if j := must.Value(d.Read("br-net1")); !j.Done {
			t.Errorf("ended before step %d, after %q, the journal is not complete", kill, last)
		}
		must.Succeed(t, errors.Join(netlink.LinkDel(link), netlink.LinkDel(bridge)))
		if err == nil {
			t.Logf("%d steps", steps)
			if steps < 20 {
				t.Error("a restoration has more steps")
			}
			return
		}
	}
}

// TestARefusedRouteDoesNotStopARestoration restores a default route over two interfaces, of which the other one is down now.
func TestARefusedRouteDoesNotStopARestoration(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link, other := configured(t), nodetest.Veth(t, "eth2")
	must.Succeed(t, netlink.AddrAdd(other, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("203.0.113.1/24"))}))
	must.Succeed(t, netlink.RouteAdd(&netlink.Route{Dst: netipx.PrefixIPNet(netip.MustParsePrefix("10.7.0.0/16")), MultiPath: []*netlink.NexthopInfo{
		{LinkIndex: link.Attrs().Index, Gw: net.ParseIP("192.0.2.254")}, {LinkIndex: other.Attrs().Index, Gw: net.ParseIP("203.0.113.254")},
	}}))
	bridge := nodetest.Veth(t, "br-net1")
	before := must.Value(kernel.Read(link))
	d := Directory{Path: filepath.Join(t.TempDir(), "uplinks"), Log: testr.New(t)}
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: before, Deadline: Deadline(time.Hour)}))
	_, err := d.Move(t.Context(), "br-net1")
	must.Succeed(t, errors.Join(err, netlink.LinkSetDown(other)))
	must.Succeed(t, d.PutBack(t.Context(), "br-net1", "test"))
	if j := must.Value(d.Read("br-net1")); !j.Done || !strings.Contains(j.Cause, "10.7.0.0/16") {
		t.Errorf("journal: %+v", j)
	}
	if left := must.Value(configuration(bridge)); len(left.Addresses)+len(left.Routes) > 0 {
		t.Errorf("the bridge keeps %+v", left)
	}
	for i, r := range before.Routes {
		if r.Destination.String() == "10.7.0.0/16" { // without the hop of the other interface
			before.Routes[i].Hops, before.Routes[i].Gateway = "", netip.MustParseAddr("192.0.2.254")
		}
	}
	if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
		t.Error(diff)
	}
}

// TestARefusedAddressDoesNotStopARestoration restores an interface on which IPv6 was disabled after the move.
func TestARefusedAddressDoesNotStopARestoration(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	d, link, bridge, before := moved(t)
	for _, name := range []string{"eth1", "br-net1"} {
		must.Succeed(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0o600))
	}
	must.Succeed(t, d.PutBack(t.Context(), "br-net1", "test"))
	if j := must.Value(d.Read("br-net1")); !j.Done || !strings.Contains(j.Cause, "2001:db8::1/64") {
		t.Errorf("journal: %+v", j)
	}
	if left := must.Value(configuration(bridge)); len(left.Addresses)+len(left.Routes) > 0 {
		t.Errorf("the bridge keeps %+v", left)
	}
	before.Addresses = slices.DeleteFunc(before.Addresses, func(a kernel.Address) bool { return a.Prefix.Addr().Is6() })
	before.Routes = slices.DeleteFunc(before.Routes, func(r kernel.Route) bool { return r.Family == 6 })
	for s, value := range must.Value(kernel.Read(link)).Settings {
		before.Settings[s] = value
	}
	// The kernel refuses an IPv4 route by an IPv6 gateway there.
	before.Routes = slices.DeleteFunc(before.Routes, func(r kernel.Route) bool { return r.Gateway.Is6() })
	if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
		t.Error(diff)
	}
}

// TestAFullFileSystemDoesNotStopARestoration restores an interface while the journal cannot be written.
func TestAFullFileSystemDoesNotStopARestoration(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	d, link, bridge, before := moved(t)
	full := filepath.Join(d.Path, "br-net1.json.new")
	must.Succeed(t, os.Symlink("/dev/full", full)) // a write to it fails with ENOSPC
	if err := d.PutBack(t.Context(), "br-net1", "test"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("it ends with %v", err)
	}
	if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
		t.Error(diff)
	}
	if left := must.Value(configuration(bridge)); len(left.Addresses)+len(left.Routes) > 0 {
		t.Errorf("the bridge keeps %+v", left)
	}
	must.Succeed(t, os.Remove(full))
	must.Succeed(t, d.PutBack(t.Context(), "br-net1", "test"))
	if j := must.Value(d.Read("br-net1")); !j.Done {
		t.Errorf("journal: %+v", j)
	}
}

// TestAnOldJournalLeavesTheInterfaceOfAnotherNetwork repeats the restoration of a move to br-net0 after net1 has taken the interface.
func TestAnOldJournalLeavesTheInterfaceOfAnotherNetwork(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	d, _, bridge, _ := moved(t)
	had := must.Value(configuration(bridge))
	must.Succeed(t, d.write(&Journal{Bridge: "br-net0", Uplink: "eth1", Kernel: true, Phase: PhaseReturned, Done: true}))
	d.Step = func(name string) error {
		t.Errorf("step: %s", name)
		return nil
	}
	if err := d.putBackIf(t.Context(), "br-net0", func(*Journal) (string, bool) { return "test", true }); !errors.Is(err, errNotOurs) {
		t.Errorf("it ends with %v", err)
	}
	if diff := same(had, must.Value(configuration(bridge))); diff != "" {
		t.Error(diff)
	}
}

// TestABridgeThatWasMadeAgainIsNoLongerComplete replaces a bridge by one with carrier that nothing completes.
func TestABridgeThatWasMadeAgainIsNoLongerComplete(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	d, link, bridge, before := moved(t)
	g := &Guard{Directory: d, Log: testr.New(t), Grace: time.Millisecond, missing: map[string]time.Time{}}
	for range 3 {
		g.pass(t.Context())
	}
	if j := must.Value(d.Read("br-net1")); j.Phase != PhaseMoved {
		t.Fatalf("journal of a complete bridge: %+v", j)
	}
	must.Succeed(t, netlink.LinkDel(bridge))
	nodetest.Veth(t, "br-net1")
	eventually.Wait{For: "the interface is as before"}.Succeeds(t, func() error {
		g.pass(t.Context())
		if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

func TestACompletedMoveStaysWhileItsBridgeExists(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link, bridge := configured(t), nodetest.Veth(t, "br-net1")
	before := must.Value(kernel.Read(link))
	d := Directory{Path: filepath.Join(t.TempDir(), "uplinks")}
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: before, Deadline: Deadline(time.Second)}))
	_, err := d.Move(t.Context(), "br-net1")
	must.Succeed(t, errors.Join(err, d.Commit(t.Context(), "br-net1")))
	g := &Guard{Directory: d, Log: testr.New(t), Grace: time.Millisecond, missing: map[string]time.Time{}}
	time.Sleep(1100 * time.Millisecond) // the deadline passes
	g.pass(t.Context())
	if j := must.Value(d.Read("br-net1")); j.Phase != PhaseMoved {
		t.Fatalf("journal: %+v", j)
	}
	d.RunDir = t.TempDir()
	socket := must.Value(net.Listen("unix", filepath.Join(d.RunDir, "br-net1.mgmt"))) // ovs-vswitchd runs
	g.Directory = d
	for range 3 {
		g.pass(t.Context())
	}
	if j := must.Value(d.Read("br-net1")); j.Phase != PhaseMoved {
		t.Fatalf("while ovs-vswitchd runs: %+v", j)
	}
	must.Succeed(t, socket.Close())
	eventually.Wait{For: "after the end of ovs-vswitchd, the interface is as before"}.Succeeds(t, func() error {
		g.pass(t.Context())
		if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
			return errors.New(diff)
		}
		return nil
	})

	d.RunDir = ""
	g.Directory = d
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: before, Deadline: Deadline(time.Hour)}))
	_, err = d.Move(t.Context(), "br-net1")
	must.Succeed(t, errors.Join(err, d.Commit(t.Context(), "br-net1")))
	must.Succeed(t, netlink.LinkDel(bridge))
	eventually.Wait{For: "the interface is as before"}.Succeeds(t, func() error {
		g.pass(t.Context())
		if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// moved is an interface whose move to br-net1 is complete.
func moved(t *testing.T) (d Directory, link, bridge netlink.Link, before kernel.State) {
	t.Helper()
	link, bridge = configured(t), nodetest.Veth(t, "br-net1")
	before = must.Value(kernel.Read(link))
	d = Directory{Path: filepath.Join(t.TempDir(), "uplinks")}
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: before, Deadline: Deadline(time.Hour)}))
	_, err := d.Move(t.Context(), "br-net1")
	must.Succeed(t, errors.Join(err, d.Commit(t.Context(), "br-net1")))
	return d, link, bridge, before
}

// TestRemovedObjectsStayRemoved removes a route and an address of a complete bridge, and lets an address end.
func TestRemovedObjectsStayRemoved(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	d, link, bridge, before := moved(t)
	gone := func(r kernel.Route) bool { return r.Table == 100 }
	must.Succeed(t, netlink.RouteDel(&netlink.Route{LinkIndex: bridge.Attrs().Index, Gw: net.ParseIP("192.0.2.254"), Table: 100, Priority: 7}))
	must.Succeed(t, netlink.AddrDel(bridge, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("198.51.100.1/25"))}))
	must.Succeed(t, netlink.AddrReplace(bridge, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("2001:db8::1/64")), ValidLft: 1, PreferedLft: 1}))
	eventually.Wait{For: "the address ends"}.Succeeds(t, func() error {
		if has := must.Value(configuration(bridge)); len(has.Addresses) != 2 {
			return errors.New("it is there")
		}
		return nil
	})
	if n, err := d.Move(t.Context(), "br-net1"); err != nil || n != 2 {
		t.Fatalf("%d addresses: %v", n, err)
	}
	want := before
	want.Addresses = slices.DeleteFunc(slices.Clone(before.Addresses), func(a kernel.Address) bool {
		return a.Prefix.String() == "198.51.100.1/25" || a.Prefix.String() == "2001:db8::1/64"
	})
	want.Routes = slices.DeleteFunc(slices.Clone(before.Routes), gone)
	must.Succeed(t, d.PutBack(t.Context(), "br-net1", "test"))
	if diff := same(want, must.Value(kernel.Read(link))); diff != "" {
		t.Error(diff)
	}
}

// TestNeighboursOfTheMoveAreNotAddedAgain moves another address after a neighbour has got another MAC address.
func TestNeighboursOfTheMoveAreNotAddedAgain(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link, bridge := configured(t), nodetest.Veth(t, "br-net1")
	resolved(t, link, 8)
	d := Directory{Path: filepath.Join(t.TempDir(), "uplinks")}
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: must.Value(kernel.Read(link)), Deadline: Deadline(time.Hour)}))
	_, err := d.Move(t.Context(), "br-net1")
	must.Succeed(t, errors.Join(err, d.Commit(t.Context(), "br-net1")))
	resolved(t, bridge, 9)
	want := must.Value(kernel.Read(bridge)).Neighbours
	must.Succeed(t, kernel.AddAddress(link, netip.MustParsePrefix("203.0.113.5/24")))
	if n, err := d.Move(t.Context(), "br-net1"); err != nil || n != 5 {
		t.Fatalf("%d addresses: %v", n, err)
	}
	if got := must.Value(kernel.Read(bridge)).Neighbours; len(want) != 2 || !slices.Equal(got, want) {
		t.Errorf("neighbours: %+v, want %+v", got, want)
	}
}

// TestABridgeThatWasSetDownGetsItsRoutesAgain loses all routes of a family at once, as when the bridge is set down and up.
func TestABridgeThatWasSetDownGetsItsRoutesAgain(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	d, _, bridge, _ := moved(t)
	had := must.Value(configuration(bridge))
	must.Succeed(t, errors.Join(netlink.LinkSetDown(bridge), netlink.LinkSetUp(bridge)))
	if lost := must.Value(configuration(bridge)); len(lost.Routes) == len(had.Routes) {
		t.Fatalf("the kernel keeps %+v", lost)
	}
	_, err := d.Move(t.Context(), "br-net1")
	must.Succeed(t, err)
	if diff := same(had, must.Value(configuration(bridge))); diff != "" {
		t.Error(diff)
	}
}

// TestAnExpiredAddressDoesNotReturn restores an interface after an address in its journal has ended.
func TestAnExpiredAddressDoesNotReturn(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link := nodetest.Veth(t, "eth1")
	before := kernel.State{MTU: 1450, Addresses: []kernel.Address{
		{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Valid: kernel.SinceBoot() - time.Second, Preferred: kernel.SinceBoot() - time.Second},
		{Prefix: netip.MustParsePrefix("192.0.2.2/24")},
	}}
	d := Directory{Path: filepath.Join(t.TempDir(), "uplinks")}
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: before}))
	must.Succeed(t, d.PutBack(t.Context(), "br-net1", "test"))
	if got := kernel.Prefixes(must.Value(configuration(link)).Addresses); len(got) != 1 || got[0].String() != "192.0.2.2/24" {
		t.Errorf("addresses: %v", got)
	}
}

func settingOf(name, link string) string {
	return filepath.Join("/proc/sys/net", strings.Replace(name, "IF", link, 1))
}

// TestSettingsMove moves an interface whose IPv6 settings are not the default.
func TestSettingsMove(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link, bridge := nodetest.Veth(t, "eth1"), nodetest.Veth(t, "br-net1")
	for name, value := range map[string]string{
		"ipv6/conf/IF/accept_ra": "0", "ipv6/conf/IF/addr_gen_mode": "1", "ipv4/conf/IF/rp_filter": "2", "ipv6/conf/IF/disable_ipv6": "0",
	} {
		must.Succeed(t, os.WriteFile(settingOf(name, "eth1"), []byte(value), 0o600))
	}
	must.Succeed(t, os.WriteFile(settingOf("ipv6/conf/IF/disable_ipv6", "br-net1"), []byte("1"), 0o600))
	local := &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("fe80::77/64")), Flags: unix.IFA_F_NODAD}
	must.Succeed(t, errors.Join(netlink.AddrAdd(link, local), netlink.AddrAdd(link, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("2001:db8::1/64")), Flags: unix.IFA_F_NODAD})))
	before := must.Value(kernel.Read(link))
	d := Directory{Path: filepath.Join(t.TempDir(), "uplinks")}
	must.Succeed(t, d.Prepare("br-net1", before))
	must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: before, Deadline: Deadline(time.Hour)}))
	_, err := d.Move(t.Context(), "br-net1")
	must.Succeed(t, err)
	after := must.Value(kernel.Read(bridge))
	if diff := cmp.Diff(before.Settings, after.Settings); diff != "" {
		t.Errorf("settings of the bridge: %s", diff)
	}
	if !slices.Contains(kernel.Prefixes(after.Addresses), netip.MustParsePrefix("fe80::77/64")) {
		t.Errorf("the link-local address has not moved: %v", kernel.Prefixes(after.Addresses))
	}
	must.Succeed(t, d.PutBack(t.Context(), "br-net1", "test"))
	if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
		t.Error(diff)
	}
}

// TestAProcessThatContinuesAfterARestorationChangesNothing stops a move before each of its steps, as SIGSTOP does, while it has the lock. A guard
// restores the interface, and then the move continues.
func TestAProcessThatContinuesAfterARestorationChangesNothing(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	lockTimeout = 50 * time.Millisecond
	link := configured(t)
	nodetest.Veth(t, "br-net1")
	before := must.Value(kernel.Read(link))
	guard := Directory{Path: filepath.Join(t.TempDir(), "uplinks")}
	for stop := 1; ; stop++ {
		step, name := 0, ""
		d := guard
		d.Step = func(s string) error {
			if step++; step == stop {
				name = s
				must.Succeed(t, guard.PutBack(t.Context(), "br-net1", "the deadline"))
			}
			return nil
		}
		must.Succeed(t, guard.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: before, Deadline: Deadline(time.Hour)}))
		_, err := d.Move(t.Context(), "br-net1")
		if err == nil {
			err = d.Commit(t.Context(), "br-net1")
		}
		if step < stop {
			if stop < 10 {
				t.Errorf("a move has only %d steps", stop)
			}
			return
		}
		if !errors.Is(err, ErrReturned) {
			t.Errorf("stopped before %q, it ends with %v", name, err)
		}
		if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
			t.Fatalf("stopped before %q: %s", name, diff)
		}
	}
}

// TestAStepAfterTheCheckIsUndone restores the interface between the check of the journal and the change.
func TestAStepAfterTheCheckIsUndone(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	lockTimeout = 50 * time.Millisecond
	d, link, _, before := moved(t)
	err := d.While(t.Context(), "br-net1", "test", func() error {
		must.Succeed(t, d.PutBack(t.Context(), "br-net1", "the deadline"))
		return netlink.AddrDel(link, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("192.0.2.1/24"))})
	})
	if !errors.Is(err, ErrReturned) {
		t.Errorf("it ends with %v", err)
	}
	if diff := same(before, must.Value(kernel.Read(link))); diff != "" {
		t.Error(diff)
	}
}

// TestAMoveThatBeganAgainIsNotRestored stops a restoration while another move begins.
func TestAMoveThatBeganAgainIsNotRestored(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	lockTimeout = 50 * time.Millisecond
	d, _, bridge, before := moved(t)
	had := must.Value(configuration(bridge))
	begun := false
	stopped := d
	stopped.Step = func(name string) error {
		if name == "detach eth1" && !begun {
			begun = true
			must.Succeed(t, d.Begin(t.Context(), Journal{Bridge: "br-net1", Uplink: "eth1", Kernel: true, Phase: PhaseTrial, Before: before, Deadline: Deadline(time.Hour)}))
		}
		return nil
	}
	if err := stopped.PutBack(t.Context(), "br-net1", "late"); !errors.Is(err, errBegunAgain) {
		t.Errorf("it ends with %v", err)
	}
	if diff := same(had, must.Value(configuration(bridge))); diff != "" {
		t.Error(diff)
	}
}
