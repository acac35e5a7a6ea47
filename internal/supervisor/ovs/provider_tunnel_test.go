// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/must"
	"github.com/kiln-net/kiln/internal/nodetest"
	"github.com/kiln-net/kiln/internal/providerbridge"
	"github.com/kiln-net/kiln/internal/supervisor/supervisortest"
	"github.com/kiln-net/kiln/internal/uplink"
)

// TestAProviderNetworkOnTheTunnelInterface connects a port of OVN with the only interface of a node, which br-phy has.
func TestAProviderNetworkOnTheTunnelInterface(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	outside := wire(t)
	inside := must.Value(netlink.NewHandleAt(outside))
	peer := must.Value(inside.LinkByName("peer"))
	for _, a := range prefixes("10.0.0.2/24", "fd00::2/64") {
		must.Succeed(t, inside.AddrAdd(peer, &netlink.Addr{IPNet: ipNet(a), Flags: unix.IFA_F_NODAD}))
	}
	c := startCentral(t)
	o := nodeOptions(t, c)
	stop := background(t, func(ctx context.Context) error { return Run(ctx, o) })
	healthy(t, o.HealthAddress)
	pod := logicalPort(t, o, c, "a", "10.0.0.1/24")
	command(t, "usr/bin/ovn-nbctl", northbound(c), "lsp-add", "s", "wire", "--", "lsp-set-type", "wire", "localnet",
		"--", "lsp-set-addresses", "wire", "unknown", "--", "lsp-set-options", "wire", "network_name=net2")
	reached := func() error {
		return errors.Join(checkMoved(t), pingFrom(outside, "192.0.2.1"))
	}
	supervisortest.Eventually(t, "the node is reached", reached)

	p, running := provided{options: o}, make(chan struct{})
	network := func(attempt string) providerbridge.Request {
		return providerbridge.Request{Interface: "eth1", Attempt: attempt}
	}
	p.request(t, running, map[string]providerbridge.Request{"net2": network("1")})
	connected := func() error {
		return errors.Join(pingFrom(pod, "10.0.0.2"), discover(pod, "fd00::2", peer.Attrs().HardwareAddr))
	}
	podHandle := must.Value(netlink.NewHandleAt(pod))
	must.Succeed(t, podHandle.AddrAdd(must.Value(podHandle.LinkByName("a_c")), &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix("fd00::1/64")), Flags: unix.IFA_F_NODAD}))
	supervisortest.Eventually(t, "the port reaches a host", connected)
	must.Succeed(t, reached())

	t.Run("after ovs-vswitchd was killed", func(t *testing.T) {
		kill(t, filepath.Join(o.RunDir, "ovs-vswitchd.pid"))
		supervisortest.Eventually(t, "node and port are connected", func() error { return errors.Join(reached(), connected()) })
	})
	must.Succeed(t, stop())
	supervisortest.Eventually(t, "the node is reached while nothing runs", func() error { return pingFrom(outside, "192.0.2.1") })
	left := must.Value(observe(must.Value(netlink.LinkByName("eth1")), nil))
	if missing := lacking(prefixes("192.0.2.1/24", "2001:db8::1/64"), left.UplinkAddresses); len(missing) > 0 || len(left.UplinkRoutes) != 2 {
		t.Errorf("eth1 has %v and %v", left.UplinkAddresses, left.UplinkRoutes)
	}
	o.Clusters, o.Requests = clusters(c.cluster), signer(t, c.chassis)
	stop = background(t, func(ctx context.Context) error { return Run(ctx, o) })
	supervisortest.Eventually(t, "node and port are connected after a restart", func() error { return errors.Join(reached(), connected()) })

	t.Run("another provider network does not get the interface", func(t *testing.T) {
		p.request(t, running, map[string]providerbridge.Request{"net1": network("1"), "net2": network("2")})
		supervisortest.Eventually(t, "the first stays", func() error {
			results, _, err := p.results(t, running)
			first, second := results["net2"], results["net1"]
			if err == nil && (first.State != providerbridge.StateReady || first.MTU != 1500 || !first.Answers(network("2")) || second.Reason != providerbridge.ReasonConflict) {
				err = fmt.Errorf("results: %+v, %+v", first, second)
			}
			return err
		})
		must.Succeed(t, connected())
	})
	t.Run("after its removal, the node is reached and the port is not", func(t *testing.T) {
		p.request(t, running, nil)
		supervisortest.Eventually(t, "the bridge is removed", func() error {
			if link, err := uplink.Link("br-net2"); link != nil || err != nil {
				return errors.Join(errors.New("it is there"), err)
			}
			return nil
		})
		if pingFrom(pod, "10.0.0.2") == nil {
			t.Error("the port reaches a host")
		}
		db := p.database(t, running)
		defer db.Close()
		if tunnels := must.Value(readBridge(t.Context(), db, bridgeName)); len(tunnels.ports) != 2 {
			t.Errorf("ports of %s: %v", bridgeName, tunnels.ports)
		}
		must.Succeed(t, reached())
	})
	t.Run("after Kiln was removed without the removal of the provider network", func(t *testing.T) {
		p.request(t, running, map[string]providerbridge.Request{"net2": network("3")})
		supervisortest.Eventually(t, "the port reaches a host", connected)
		must.Succeed(t, stop())
		must.Succeed(t, CleanUp(t.Context(), o))
		supervisortest.Eventually(t, "the node is reached", func() error { return pingFrom(outside, "192.0.2.1") })
		for _, name := range []string{bridgeName, "br-net2"} {
			if link, err := uplink.Link(name); link != nil || err != nil {
				t.Errorf("interface %s is left (%v)", name, err)
			}
		}
	})
}

// discover returns an error unless neighbour discovery in a namespace finds an address at a MAC address.
func discover(in netns.NsHandle, address string, mac net.HardwareAddr) error {
	return within(in, func() error {
		conn, err := net.Dial("udp6", net.JoinHostPort(address, "9"))
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		neighbours, err := netlink.NeighList(0, netlink.FAMILY_V6)
		for _, n := range neighbours {
			if n.IP.String() == address && n.HardwareAddr.String() == mac.String() {
				return nil
			}
		}
		return errors.Join(fmt.Errorf("%s is not found: %v", address, neighbours), err)
	})
}

// TestTheNodeKeepsItsAddressWhileItReturns reads the order in which the tunnel interface gets the node's address, and br-phy loses it.
func TestTheNodeKeepsItsAddressWhileItReturns(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	wire(t)
	eth1 := must.Value(netlink.LinkByName("eth1"))
	address := prefixes("192.0.2.1/24")
	must.Succeed(t, uplink.RemoveAddresses(eth1, uplink.Plain(address), nil))
	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}, PeerName: "other"}))
	bridge := must.Value(netlink.LinkByName(bridgeName))
	must.Succeed(t, errors.Join(netlink.LinkSetUp(bridge), uplink.AddAddress(bridge, address[0])))
	done, events := make(chan struct{}), make(chan netlink.AddrUpdate, 100)
	defer close(done)
	must.Succeed(t, netlink.AddrSubscribe(events, done))
	u := tunnelBridge{options: Options{NodeAddress: "192.0.2.1"}, moved: memory{Uplink: "eth1", Addresses: address}}
	must.Succeed(t, u.leave(t.Context()))
	for e := range events {
		if e.LinkAddress.IP.To4() == nil {
			continue // link-local ones
		}
		if !e.NewAddr || e.LinkIndex != eth1.Attrs().Index {
			t.Errorf("the first change: %+v", e)
		}
		break
	}
	if left := must.Value(uplink.Addresses(eth1)); len(lacking(address, left)) > 0 {
		t.Errorf("eth1 has %v", left)
	}
}
