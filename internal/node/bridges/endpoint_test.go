// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

func TestUnknownTunnelInterfaceNamesThoseThatAre(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	_, err := tunnelInterface(Options{Node: "node-1", TunnelInterface: "eth9"})
	if err == nil || !strings.Contains(err.Error(), "interface eth9 is not on node node-1; its interfaces are lo, eth1") {
		t.Fatalf("got %v", err)
	}
	mistakes.Sees(t, 7, err.Error())
}

func TestTunnelInterfaceOfNodeAddress(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
		o := Options{Node: "node-1", NodeAddress: address, Datapath: v1alpha1.DatapathKernel}
		link, err := tunnelInterface(o)
		if err != nil || link.Attrs().Name != "eth1" {
			t.Fatalf("interface of %s: %v, %v", address, link, err)
		}
		if end, err := encapsulationAddress(o, link); err != nil || end.String() != address {
			t.Errorf("tunnels end at %s, %v", end, err)
		}
	}
}

// The kubelet passes a new address of the node to the next container only.
func TestTunnelsFollowTheAddressOfTheNode(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	eth1 := must.Value(netlink.LinkByName("eth1"))
	o := Options{Node: "node-1", NodeAddress: "192.0.2.1", Datapath: v1alpha1.DatapathKernel, RunDir: t.TempDir()}
	n := must.Value(NewTunnels(o))
	for _, step := range []struct {
		name        string
		add, remove []netip.Prefix
		want, err   string
	}{
		{name: "the address of the node", want: "192.0.2.1"},
		{name: "a second address", add: nodetest.Prefixes("203.0.113.7/24"), want: "192.0.2.1"},
		{name: "the node has lost its address", remove: nodetest.Prefixes("192.0.2.1/24"), want: "203.0.113.7"},
		{name: "no address of the family", remove: nodetest.Prefixes("203.0.113.7/24"), err: "interface eth1 of node node-1 has no address"},
		{name: "an address of another network", add: nodetest.Prefixes("198.51.100.7/24"), want: "198.51.100.7"},
		{name: "the first address again", add: nodetest.Prefixes("192.0.2.1/24"), want: "192.0.2.1"},
	} {
		must.Succeed(t, kernel.RemoveAddresses(eth1, kernel.Plain(step.remove), nil))
		for _, a := range step.add {
			must.Succeed(t, kernel.AddAddress(eth1, a))
		}
		got, err := n.Address(t.Context(), nil)
		if step.err != "" {
			if err == nil || !strings.Contains(err.Error(), step.err) {
				t.Errorf("%s: %s, %v", step.name, got, err)
			}
		} else if err != nil || got.String() != step.want {
			t.Errorf("%s: tunnels end at %s, %v; want %s", step.name, got, err, step.want)
		}
	}
}
