// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/bridgestest"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// fakeBridge makes an interface in place of the one that ovs-vswitchd makes.
func fakeBridge(t *testing.T) netlink.Link {
	t.Helper()
	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: providerbridge.Tunnels, HardwareAddr: must.Value(netlink.LinkByName("eth1")).Attrs().HardwareAddr}, PeerName: "vswitchd"}))
	must.Succeed(t, netlink.LinkSetUp(must.Value(netlink.LinkByName("vswitchd"))))
	return must.Value(netlink.LinkByName(providerbridge.Tunnels))
}

func TestApplyMovesAddressesAndRoutes(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	eth1, bridge := must.Value(netlink.LinkByName("eth1")), fakeBridge(t)

	plan := kernel.Plan("eth1", kernel.Memory{}, must.Value(observe(eth1, bridge)))
	if len(plan.AddAddresses) != 2 || len(plan.AddRoutes) != 2 {
		t.Fatalf("plan: %v", plan)
	}
	must.Succeed(t, kernel.Apply(plan, eth1, bridge, nil))
	must.Succeed(t, bridgestest.Moved())

	t.Run("a repetition changes nothing", func(t *testing.T) {
		again := kernel.Plan("eth1", plan.Memory, must.Value(observe(eth1, bridge)))
		if len(again.AddAddresses)+len(again.AddRoutes)+len(again.ClearAddresses)+len(again.ClearRoutes) > 0 {
			t.Errorf("plan: %v", again)
		}
		must.Succeed(t, kernel.Apply(plan, eth1, bridge, nil))
		must.Succeed(t, bridgestest.Moved())
	})
	t.Run("a second address of the same network follows", func(t *testing.T) {
		must.Succeed(t, kernel.AddAddress(eth1, netip.MustParsePrefix("192.0.2.9/24")))
		next := kernel.Plan("eth1", plan.Memory, must.Value(observe(eth1, bridge)))
		must.Succeed(t, kernel.Apply(next, eth1, bridge, nil))
		must.Succeed(t, bridgestest.Moved("192.0.2.9/24"))
		plan = next
	})
	t.Run("a new interface of the bridge gets everything back", func(t *testing.T) {
		must.Succeed(t, netlink.LinkDel(bridge))
		bridge = fakeBridge(t)
		must.Succeed(t, kernel.Apply(kernel.Plan("eth1", plan.Memory, must.Value(observe(eth1, bridge))), eth1, bridge, nil))
		must.Succeed(t, bridgestest.Moved("192.0.2.9/24"))
	})
	t.Run("a former uplink gets everything back", func(t *testing.T) {
		u := Tunnels{options: Options{TunnelInterface: "eth2"}}
		must.Succeed(t, u.giveBack(t.Context(), memoryOf(plan.Memory), bridge))
		seen := must.Value(observe(eth1, bridge))
		if len(seen.BridgeAddresses)+len(seen.BridgeRoutes) > 0 || len(bridgestest.Lacking(memoryOf(plan.Memory).Addresses, seen.UplinkAddresses)) > 0 || len(seen.UplinkRoutes) != 2 {
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
	nodetest.Wire(t)
	eth1 := must.Value(netlink.LinkByName("eth1"))
	known := memory{Uplink: "eth0", Addresses: nodetest.Prefixes("192.0.2.1/24", "2001:db8::1/64")}
	for name, c := range map[string]struct {
		former    string
		hardware  string
		addresses []netip.Prefix
		want      string // the uplink in the memory
	}{
		"without addresses":            {"eth0", eth1.Attrs().HardwareAddr.String(), nil, "eth1"},
		"with a known address":         {"eth0", eth1.Attrs().HardwareAddr.String(), nodetest.Prefixes("2001:db8::1/64"), "eth1"},
		"with another address as well": {"eth0", eth1.Attrs().HardwareAddr.String(), nodetest.Prefixes("2001:db8::1/64", "192.0.2.7/24"), "eth0"},
		"another interface":            {"eth0", "02:00:00:00:00:01", nodetest.Prefixes("2001:db8::1/64"), "eth0"},
		"the former interface exists":  {"lo", eth1.Attrs().HardwareAddr.String(), nil, "lo"},
		"no memory":                    {"", eth1.Attrs().HardwareAddr.String(), nil, ""},
	} {
		b := database.Bridge{Row: &vswitch.Bridge{OtherConfig: map[string]string{"hwaddr": c.hardware}}}
		known.Uplink = c.former
		got := must.Value(known.renamed(b, eth1, kernel.Observed{UplinkAddresses: kernel.Plain(c.addresses)}))
		if got.Uplink != c.want {
			t.Errorf("%s: the memory is of %q, want %q", name, got.Uplink, c.want)
		}
	}
}

// TestTheNodeKeepsItsAddressWhileItReturns reads the order in which the tunnel interface gets the node's address, and br-phy loses it.
func TestTheNodeKeepsItsAddressWhileItReturns(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	eth1 := must.Value(netlink.LinkByName("eth1"))
	address := nodetest.Prefixes("192.0.2.1/24")
	must.Succeed(t, kernel.RemoveAddresses(eth1, kernel.Plain(address), nil))
	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: providerbridge.Tunnels}, PeerName: "other"}))
	bridge := must.Value(netlink.LinkByName(providerbridge.Tunnels))
	must.Succeed(t, errors.Join(netlink.LinkSetUp(bridge), kernel.AddAddress(bridge, address[0])))
	done, events := make(chan struct{}), make(chan netlink.AddrUpdate, 100)
	defer close(done)
	must.Succeed(t, netlink.AddrSubscribe(events, done))
	u := Tunnels{options: Options{NodeAddress: "192.0.2.1"}, moved: memory{Uplink: "eth1", Addresses: address}}
	must.Succeed(t, u.Leave(t.Context()))
	for e := range events {
		if e.LinkAddress.IP.To4() == nil {
			continue // link-local ones
		}
		if !e.NewAddr || e.LinkIndex != eth1.Attrs().Index {
			t.Errorf("the first change: %+v", e)
		}
		break
	}
	if left := must.Value(kernel.Addresses(eth1)); len(bridgestest.Lacking(address, left)) > 0 {
		t.Errorf("eth1 has %v", left)
	}
}
