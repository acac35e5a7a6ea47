// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/must"
	"github.com/kiln-net/kiln/internal/nodetest"
)

// reach returns which of these ports of an address accept a connection from a namespace.
func reach(t *testing.T, from netns.NsHandle, address string, ports []int) []int {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := must.Value(netns.Get())
	defer here.Close()
	must.Succeed(t, netns.Set(from))
	defer func() { must.Succeed(t, netns.Set(here)) }()
	var open []int
	for _, port := range ports {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(address, fmt.Sprint(port)), time.Minute)
		switch {
		case err == nil:
			open = append(open, port)
			must.Succeed(t, conn.Close())
		case !errors.Is(err, syscall.ECONNREFUSED):
			t.Errorf("port %d of %s: %v: want a refusal, not a drop", port, address, err)
		}
	}
	return open
}

func TestGuardKeepsPortsForThoseWhoNeedThem(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	there := wire(t)
	other := must.Value(netlink.NewHandleAt(there))
	must.Succeed(t, other.AddrAdd(must.Value(other.LinkByName("peer")), &netlink.Addr{IPNet: ipNet(prefixes("2001:db8::2/64")[0]), Flags: syscall.IFA_F_NODAD}))
	all := []int{6641, 6642, 6643, 6644, 6645, 6649, 6651}
	for _, port := range all {
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		must.Succeed(t, err)
		t.Cleanup(func() { _ = listener.Close() })
	}
	members := func(addresses ...string) (db v1alpha1.DatabaseStatus) {
		for i, a := range addresses {
			db.Members = append(db.Members, v1alpha1.DatabaseMember{Node: fmt.Sprintf("node-%d", i+1), Address: a})
		}
		return db
	}
	for _, c := range []struct {
		name   string
		access v1alpha1.PortAccess
		node   string
		status v1alpha1.OVNClusterStatus
		v4, v6 []int
	}{
		{
			name: "an outsider reaches a port for nodes", node: "node-1",
			status: v1alpha1.OVNClusterStatus{Northbound: members("192.0.2.1"), Southbound: members("192.0.2.1"), Clients: []string{"192.0.2.1"}},
			v4:     []int{6642, 6651}, v6: []int{6642, 6651},
		},
		{
			name: "a member of one database reaches its Raft, by the family of its address", node: "node-1",
			status: v1alpha1.OVNClusterStatus{
				Northbound: members("192.0.2.1", "192.0.2.2"), Southbound: members("192.0.2.1", "2001:db8::2"), Clients: []string{"192.0.2.1"},
			},
			v4: []int{6642, 6643, 6651}, v6: []int{6642, 6644, 6651},
		},
		{
			name: "a node of the controller reaches the clients' ports", node: "node-1",
			status: v1alpha1.OVNClusterStatus{Northbound: members("192.0.2.1"), Southbound: members("192.0.2.1"), Clients: []string{"192.0.2.2"}},
			v4:     []int{6641, 6642, 6645, 6649, 6651}, v6: []int{6642, 6651},
		},
		{
			name: "while the clients are not known their ports are open", node: "node-1",
			status: v1alpha1.OVNClusterStatus{Northbound: members("192.0.2.1"), Southbound: members("192.0.2.1")},
			v4:     []int{6641, 6642, 6645, 6649, 6651}, v6: []int{6641, 6642, 6645, 6649, 6651},
		},
		{
			name: "without a member there is nothing to guard", node: "node-9",
			status: v1alpha1.OVNClusterStatus{Northbound: members("192.0.2.1"), Southbound: members("192.0.2.1"), Clients: []string{"192.0.2.1"}},
			v4:     all, v6: all,
		},
		{
			name: "open is open", node: "node-1", access: v1alpha1.PortAccessOpen,
			status: v1alpha1.OVNClusterStatus{Northbound: members("192.0.2.1"), Southbound: members("192.0.2.1"), Clients: []string{"192.0.2.1"}},
			v4:     all, v6: all,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := &v1alpha1.OVNCluster{Status: c.status}
			cluster.Spec.Central.PortAccess = c.access
			var g guard
			g.follow(cluster, c.node)
			must.Succeed(t, g.apply(t.Context()))
			for address, want := range map[string][]int{"192.0.2.1": c.v4, "2001:db8::1": c.v6} {
				if open := reach(t, there, address, all); !slices.Equal(open, want) {
					t.Errorf("of %s are open %v, want %v", address, open, want)
				}
				if open := reach(t, must.Value(netns.Get()), address, all); !slices.Equal(open, all) {
					t.Errorf("to the node itself are open %v", open)
				}
			}
			restarted := guard{} // and no API server
			must.Succeed(t, restarted.apply(t.Context()))
			if open := reach(t, there, "192.0.2.1", all); !slices.Equal(open, c.v4) {
				t.Errorf("after a restart are open %v, want %v", open, c.v4)
			}
		})
	}
	must.Succeed(t, (&guard{known: true}).apply(t.Context()))
	if tables, err := exec.CommandContext(t.Context(), "nft", "list", "tables").CombinedOutput(); err != nil || strings.Contains(string(tables), guardTable) {
		t.Errorf("nftables: %s, %v", tables, err)
	}
}
