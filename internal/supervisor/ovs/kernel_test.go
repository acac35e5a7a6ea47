// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/must"
	"github.com/kiln-net/kiln/internal/nodetest"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/uplink"
)

func prefixes(list ...string) []netip.Prefix {
	var parsed []netip.Prefix
	for _, s := range list {
		parsed = append(parsed, netip.MustParsePrefix(s))
	}
	return parsed
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// lacking returns the prefixes that no address has.
func lacking(want []netip.Prefix, have []uplink.Address) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(want), func(p netip.Prefix) bool { return slices.Contains(uplink.Prefixes(have), p) })
}

// fakeBridge makes an interface in place of the one that ovs-vswitchd makes.
func fakeBridge(t *testing.T) netlink.Link {
	t.Helper()
	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, HardwareAddr: must.Value(netlink.LinkByName("eth1")).Attrs().HardwareAddr}, PeerName: "vswitchd"}))
	must.Succeed(t, netlink.LinkSetUp(must.Value(netlink.LinkByName("vswitchd"))))
	return must.Value(netlink.LinkByName(bridgeName))
}

func TestApplyMovesAddressesAndRoutes(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	wire(t)
	eth1, bridge := must.Value(netlink.LinkByName("eth1")), fakeBridge(t)

	plan := uplink.Plan("eth1", uplink.Memory{}, must.Value(observe(eth1, bridge)))
	if len(plan.AddAddresses) != 2 || len(plan.AddRoutes) != 2 {
		t.Fatalf("plan: %v", plan)
	}
	must.Succeed(t, uplink.Apply(plan, eth1, bridge, nil))
	must.Succeed(t, checkMoved(t))

	t.Run("a repetition changes nothing", func(t *testing.T) {
		again := uplink.Plan("eth1", plan.Memory, must.Value(observe(eth1, bridge)))
		if len(again.AddAddresses)+len(again.AddRoutes)+len(again.ClearAddresses)+len(again.ClearRoutes) > 0 {
			t.Errorf("plan: %v", again)
		}
		must.Succeed(t, uplink.Apply(plan, eth1, bridge, nil))
		must.Succeed(t, checkMoved(t))
	})
	t.Run("a second address of the same network follows", func(t *testing.T) {
		must.Succeed(t, uplink.AddAddress(eth1, netip.MustParsePrefix("192.0.2.9/24")))
		next := uplink.Plan("eth1", plan.Memory, must.Value(observe(eth1, bridge)))
		must.Succeed(t, uplink.Apply(next, eth1, bridge, nil))
		must.Succeed(t, checkMoved(t, "192.0.2.9/24"))
		plan = next
	})
	t.Run("a new interface of the bridge gets everything back", func(t *testing.T) {
		must.Succeed(t, netlink.LinkDel(bridge))
		bridge = fakeBridge(t)
		must.Succeed(t, uplink.Apply(uplink.Plan("eth1", plan.Memory, must.Value(observe(eth1, bridge))), eth1, bridge, nil))
		must.Succeed(t, checkMoved(t, "192.0.2.9/24"))
	})
	t.Run("a former uplink gets everything back", func(t *testing.T) {
		u := tunnelBridge{options: Options{TunnelInterface: "eth2"}}
		must.Succeed(t, u.giveBack(t.Context(), memoryOf(plan.Memory), bridge))
		seen := must.Value(observe(eth1, bridge))
		if len(seen.BridgeAddresses)+len(seen.BridgeRoutes) > 0 || len(lacking(memoryOf(plan.Memory).Addresses, seen.UplinkAddresses)) > 0 || len(seen.UplinkRoutes) != 2 {
			t.Errorf("seen %+v", seen)
		}
	})
}

// The kernel can configure an address from a router advertisement again before the renamed uplink is seen.
func TestARenamedUplinkKeepsTheMemory(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	wire(t)
	eth1 := must.Value(netlink.LinkByName("eth1"))
	known := memory{Uplink: "eth0", Addresses: prefixes("192.0.2.1/24", "2001:db8::1/64")}
	for name, c := range map[string]struct {
		former    string
		hardware  string
		addresses []netip.Prefix
		want      string // the uplink in the memory
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
		must.Succeed(t, b.rename(eth1, uplink.Observed{UplinkAddresses: uplink.Plain(c.addresses)}))
		if b.memory.Uplink != c.want {
			t.Errorf("%s: the memory is of %q, want %q", name, b.memory.Uplink, c.want)
		}
	}
}
