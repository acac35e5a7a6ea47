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
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/bridges/bridgestest"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestAProviderNetworkOnTheTunnelInterface connects a port of OVN with the only interface of a node, which br-phy has.
func TestAProviderNetworkOnTheTunnelInterface(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	outside := nodetest.Wire(t)
	inside := must.Value(netlink.NewHandleAt(outside))
	peer := must.Value(inside.LinkByName("peer"))
	for _, a := range nodetest.Prefixes("10.0.0.2/24", "fd00::2/64") {
		must.Succeed(t, inside.AddrAdd(peer, &netlink.Addr{IPNet: netipx.PrefixIPNet(a), Flags: unix.IFA_F_NODAD}))
	}
	c := startCentral(t)
	o := nodeOptions(t, c)
	stop := background(t, func(ctx context.Context) error { return Run(ctx, o) })
	healthy(t, o.HealthAddress)
	pod := logicalPort(t, o, c, "a", "10.0.0.1/24")
	command(t, "usr/bin/ovn-nbctl", northbound(c), "lsp-add", "s", "wire", "--", "lsp-set-type", "wire", "localnet",
		"--", "lsp-set-addresses", "wire", "unknown", "--", "lsp-set-options", "wire", "network_name=net2")
	reached := func() error {
		return errors.Join(bridgestest.Moved(), nodetest.Ping(outside, "192.0.2.1"))
	}
	supervisortest.Eventually(t, "the node is reached", reached)

	p, running := bridgestest.Switch{RunDir: o.RunDir}, make(chan struct{})
	network := func(attempt string) providerbridge.Request {
		return providerbridge.Request{Interface: "eth1", Attempt: attempt}
	}
	p.Request(t, running, map[string]providerbridge.Request{"net2": network("1")})
	connected := func() error {
		return errors.Join(nodetest.Ping(pod, "10.0.0.2"), discover(pod, "fd00::2", peer.Attrs().HardwareAddr))
	}
	podHandle := must.Value(netlink.NewHandleAt(pod))
	must.Succeed(t, podHandle.AddrAdd(must.Value(podHandle.LinkByName("a_c")), &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("fd00::1/64")), Flags: unix.IFA_F_NODAD}))
	supervisortest.Eventually(t, "the port reaches a host", connected)
	must.Succeed(t, reached())

	t.Run("after ovs-vswitchd was killed", func(t *testing.T) {
		kill(t, filepath.Join(o.RunDir, "ovs-vswitchd.pid"))
		supervisortest.Eventually(t, "node and port are connected", func() error { return errors.Join(reached(), connected()) })
	})
	must.Succeed(t, stop())
	supervisortest.Eventually(t, "the node is reached while nothing runs", func() error { return nodetest.Ping(outside, "192.0.2.1") })
	left := must.Value(kernel.Observe(must.Value(netlink.LinkByName("eth1")), nil))
	if missing := bridgestest.Lacking(nodetest.Prefixes("192.0.2.1/24", "2001:db8::1/64"), left.UplinkAddresses); len(missing) > 0 || len(left.UplinkRoutes) != 2 {
		t.Errorf("eth1 has %v and %v", left.UplinkAddresses, left.UplinkRoutes)
	}
	o.Clusters, o.Requests = clusters(c.cluster), signer(t, c.chassis)
	stop = background(t, func(ctx context.Context) error { return Run(ctx, o) })
	supervisortest.Eventually(t, "node and port are connected after a restart", func() error { return errors.Join(reached(), connected()) })

	t.Run("another provider network does not get the interface", func(t *testing.T) {
		p.Request(t, running, map[string]providerbridge.Request{"net1": network("1"), "net2": network("2")})
		supervisortest.Eventually(t, "the first stays", func() error {
			results, _, err := p.Results(t, running)
			first, second := results["net2"], results["net1"]
			if err == nil && (first.State != providerbridge.StateReady || first.MTU != 1500 || !first.Answers(network("2")) || second.Reason != providerbridge.ReasonConflict) {
				err = fmt.Errorf("results: %+v, %+v", first, second)
			}
			return err
		})
		must.Succeed(t, connected())
	})
	t.Run("after its removal, the node is reached and the port is not", func(t *testing.T) {
		p.Request(t, running, nil)
		supervisortest.Eventually(t, "the bridge is removed", func() error {
			if link, err := kernel.Link("br-net2"); link != nil || err != nil {
				return errors.Join(errors.New("it is there"), err)
			}
			return nil
		})
		if nodetest.Ping(pod, "10.0.0.2") == nil {
			t.Error("the port reaches a host")
		}
		db := p.Database(t, running)
		defer db.Close()
		if tunnels := must.Value(database.Read(t.Context(), db, providerbridge.Tunnels)); len(tunnels.Ports) != 2 {
			t.Errorf("ports of %s: %v", providerbridge.Tunnels, tunnels.Ports)
		}
		must.Succeed(t, reached())
	})
	t.Run("after Kiln was removed without the removal of the provider network", func(t *testing.T) {
		p.Request(t, running, map[string]providerbridge.Request{"net2": network("3")})
		supervisortest.Eventually(t, "the port reaches a host", connected)
		must.Succeed(t, stop())
		must.Succeed(t, CleanUp(t.Context(), o))
		supervisortest.Eventually(t, "the node is reached", func() error { return nodetest.Ping(outside, "192.0.2.1") })
		for _, name := range []string{providerbridge.Tunnels, "br-net2"} {
			if link, err := kernel.Link(name); link != nil || err != nil {
				t.Errorf("interface %s is left (%v)", name, err)
			}
		}
	})
}

// discover returns an error unless neighbour discovery in a namespace finds an address at a MAC address.
func discover(in netns.NsHandle, address string, mac net.HardwareAddr) error {
	return nodetest.Within(in, func() error {
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
