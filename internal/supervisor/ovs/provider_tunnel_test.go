// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/kiln-net/kiln/internal/nodetest"
	"github.com/kiln-net/kiln/internal/providerbridge"
	"github.com/kiln-net/kiln/internal/supervisor/supervisortest"
	"github.com/kiln-net/kiln/internal/uplink"
)

// TestAProviderNetworkOnTheTunnelInterface connects a port of OVN with the only interface of a node, which br-phy has.
func TestAProviderNetworkOnTheTunnelInterface(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	outside := wire(t)
	inside := must(netlink.NewHandleAt(outside))
	try(t, inside.AddrAdd(must(inside.LinkByName("peer")), &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix("10.0.0.2/24"))}))
	c := startCentral(t)
	o := nodeOptions(t, c)
	background(t, func(ctx context.Context) error { return Run(ctx, o) })
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
	connected := func(pod netns.NsHandle) func() error { return func() error { return pingFrom(pod, "10.0.0.2") } }
	supervisortest.Eventually(t, "the port reaches a host", connected(pod))
	try(t, reached())

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
		try(t, connected(pod)())
	})
	t.Run("after its removal, the node is reached and the port is not", func(t *testing.T) {
		p.request(t, running, nil)
		supervisortest.Eventually(t, "the bridge is removed", func() error {
			if link, err := uplink.Link("br-net2"); link != nil || err != nil {
				return errors.Join(errors.New("it is there"), err)
			}
			return nil
		})
		if connected(pod)() == nil {
			t.Error("the port reaches a host")
		}
		db := p.database(t, running)
		defer db.Close()
		if tunnels := must(readBridge(t.Context(), db, bridgeName)); len(tunnels.ports) != 2 {
			t.Errorf("ports of %s: %v", bridgeName, tunnels.ports)
		}
		try(t, reached())
	})
}
