// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// fakeBridge makes an interface in place of the one that ovs-vswitchd makes.
func fakeBridge(t *testing.T) netlink.Link {
	t.Helper()
	try(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, HardwareAddr: must(netlink.LinkByName("eth1")).Attrs().HardwareAddr}, PeerName: "vswitchd"}))
	try(t, netlink.LinkSetUp(must(netlink.LinkByName("vswitchd"))))
	return must(netlink.LinkByName(bridgeName))
}

func TestApplyMovesAddressesAndRoutes(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	wire(t)
	eth1, bridge := must(netlink.LinkByName("eth1")), fakeBridge(t)

	plan := planMoves("eth1", memory{}, must(observe(eth1, bridge)))
	if len(plan.addAddresses) != 2 || len(plan.addRoutes) != 2 {
		t.Fatalf("plan: %v", flat(plan))
	}
	try(t, apply(plan, eth1, bridge))
	try(t, checkMoved(t))

	t.Run("a repetition changes nothing", func(t *testing.T) {
		again := planMoves("eth1", plan.memory, must(observe(eth1, bridge)))
		if len(again.addAddresses)+len(again.addRoutes)+len(again.clearAddresses)+len(again.clearRoutes) > 0 {
			t.Errorf("plan: %v", flat(again))
		}
		try(t, apply(plan, eth1, bridge))
		try(t, checkMoved(t))
	})
	t.Run("a second address of the same network follows", func(t *testing.T) {
		try(t, addAddress(eth1, netip.MustParsePrefix("192.0.2.9/24")))
		next := planMoves("eth1", plan.memory, must(observe(eth1, bridge)))
		try(t, apply(next, eth1, bridge))
		try(t, checkMoved(t, "192.0.2.9/24"))
		plan = next
	})
	t.Run("a new interface of the bridge gets everything back", func(t *testing.T) {
		try(t, netlink.LinkDel(bridge))
		bridge = fakeBridge(t)
		try(t, apply(planMoves("eth1", plan.memory, must(observe(eth1, bridge))), eth1, bridge))
		try(t, checkMoved(t, "192.0.2.9/24"))
	})
	t.Run("a former uplink gets everything back", func(t *testing.T) {
		u := uplink{options: Options{TunnelInterface: "eth2"}}
		try(t, u.giveBack(t.Context(), plan.memory, bridge))
		seen := must(observe(eth1, bridge))
		if len(seen.bridgeAddresses)+len(seen.bridgeRoutes) > 0 || len(without(plan.memory.Addresses, seen.uplinkAddresses)) > 0 || len(seen.uplinkRoutes) != 2 {
			t.Errorf("seen %+v", seen)
		}
	})
}

// The kernel can configure an address from a router advertisement again before the renamed uplink is seen.
func TestARenamedUplinkKeepsTheMemory(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	wire(t)
	eth1 := must(netlink.LinkByName("eth1"))
	known := memory{Uplink: "eth0", Addresses: prefixes("192.0.2.1/24", "2001:db8::1/64")}
	for name, c := range map[string]struct {
		former   string
		hardware string
		uplink   []netip.Prefix
		want     string // the uplink in the memory
	}{
		"without addresses":            {"eth0", eth1.Attrs().HardwareAddr.String(), nil, "eth1"},
		"with a known address":         {"eth0", eth1.Attrs().HardwareAddr.String(), prefixes("2001:db8::1/64"), "eth1"},
		"with another address as well": {"eth0", eth1.Attrs().HardwareAddr.String(), prefixes("2001:db8::1/64", "192.0.2.7/24"), "eth0"},
		"another interface":            {"eth0", "02:00:00:00:00:01", prefixes("2001:db8::1/64"), "eth0"},
		"the former interface exists":  {"lo", eth1.Attrs().HardwareAddr.String(), nil, "lo"},
		"no memory":                    {"", eth1.Attrs().HardwareAddr.String(), nil, ""},
	} {
		b := bridge{row: &vswitch.Bridge{OtherConfig: map[string]string{"hwaddr": c.hardware}}, memory: known}
		b.memory.Uplink = c.former
		try(t, b.rename(eth1, observed{uplinkAddresses: c.uplink}))
		if b.memory.Uplink != c.want {
			t.Errorf("%s: the memory is of %q, want %q", name, b.memory.Uplink, c.want)
		}
	}
}

func TestRoutesSurviveTheDatabase(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	wire(t)
	eth1 := must(netlink.LinkByName("eth1"))
	for _, r := range must(routes(eth1)) {
		again := routeOf(*r.on(eth1))
		if again != r {
			t.Errorf("%+v became %+v", r, again)
		}
	}
	if list := must(addresses(eth1)); !slices.Equal(list, prefixes("192.0.2.1/24", "2001:db8::1/64")) {
		t.Errorf("addresses: %v", list)
	}
}

// A dump of interfaces can lack entries when pods' interfaces are added or removed at the same time.
func TestAListThatWasInterruptedIsAskedForAgain(t *testing.T) {
	times, broken := 0, errors.New("broken")
	dump := func(then error) func() ([]int, error) {
		times = 0
		return func() ([]int, error) {
			if times++; times < 3 {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, then
		}
	}
	if list, err := whole(dump(nil)); err != nil || len(list) != 2 {
		t.Errorf("got %v, %v", list, err)
	}
	if _, err := whole(dump(broken)); !errors.Is(err, broken) || times != 3 {
		t.Errorf("after %d times: %v", times, err)
	}
	if _, err := whole(dump(netlink.ErrDumpInterrupted)); !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("a list that is never whole is taken for one: %v", err)
	}
}
