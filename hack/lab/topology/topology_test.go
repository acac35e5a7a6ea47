// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"net/netip"
	"testing"
)

func TestNewRefusesSizesOutsideThePlan(t *testing.T) {
	for _, size := range [][2]int{{0, 2}, {MaxControlPlanes + 1, 0}, {1, -1}, {1, MaxWorkers + 1}} {
		if _, err := New(size[0], size[1]); err == nil {
			t.Errorf("New(%d, %d) gave no error", size[0], size[1])
		}
	}
}

func TestNodesOfTheDefaultLab(t *testing.T) {
	top, err := New(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		name         string
		controlPlane bool
		eth0, eth1   string
	}{
		{"control-plane-1", true, "[172.30.0.11/24 fd00:172:30::b/64]", "[172.31.0.11/24 fd00:172:31::b/64]"},
		{"worker-1", false, "[172.30.0.101/24 fd00:172:30::65/64]", "[172.31.0.101/24 fd00:172:31::65/64]"},
		{"worker-2", false, "[172.30.0.102/24 fd00:172:30::66/64]", "[172.31.0.102/24 fd00:172:31::66/64]"},
	}
	nodes := top.Nodes()
	if len(nodes) != len(want) {
		t.Fatalf("got %d nodes, want %d", len(nodes), len(want))
	}
	for i, w := range want {
		n := nodes[i]
		if n.Name != w.name || n.ControlPlane != w.controlPlane || text(n.Management) != w.eth0 || text(n.Tunnel) != w.eth1 {
			t.Errorf("node %d is %+v, want %+v", i, n, w)
		}
	}
}

func TestEveryAddressOfTheLargestLabIsItsOwn(t *testing.T) {
	top, err := New(MaxControlPlanes, MaxWorkers)
	if err != nil {
		t.Fatal(err)
	}
	owner := map[netip.Addr]string{}
	claim := func(who string, network Network, addrs []netip.Prefix) {
		for i, a := range addrs {
			if other, taken := owner[a.Addr()]; taken {
				t.Errorf("%s is both %s's and %s's", a, other, who)
			}
			owner[a.Addr()] = who
			if !network.Prefixes[i].Contains(a.Addr()) {
				t.Errorf("%s of %s lies outside of %s", a, who, network.Prefixes[i])
			}
		}
	}
	for _, n := range []Network{Management, Tunnel, Provider, Outside} {
		claim("host on "+n.Name, n, n.Host())
		claim("router on "+n.Name, n, n.Router())
	}
	claim("outside host", Outside, OutsideHost())
	for _, v := range VLANs[1:] {
		claim("router on "+v.Name, v.Network, v.Router())
	}
	for _, v := range VLANs {
		claim(v.HostName(), v.Network, v.Outside())
		first, last := v.Leases()
		claim("the first lease of "+v.Name, v.Network, []netip.Prefix{netip.PrefixFrom(first, 24)})
		claim("the last lease of "+v.Name, v.Network, []netip.Prefix{netip.PrefixFrom(last, 24)})
	}
	for _, n := range top.Nodes() {
		claim(n.Name, Management, n.Management)
		claim(n.Name, Tunnel, n.Tunnel)
	}
}

func text(prefixes []netip.Prefix) string {
	out := "["
	for i, p := range prefixes {
		if i > 0 {
			out += " "
		}
		out += p.String()
	}
	return out + "]"
}
