// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go4.org/netipx"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/portguard"
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

func TestGuardKeepsPortsForMembersAndClients(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	there := nodetest.Wire(t)
	other := must.Value(netlink.NewHandleAt(there))
	must.Succeed(t, other.AddrAdd(must.Value(other.LinkByName("peer")), &netlink.Addr{IPNet: netipx.PrefixIPNet(nodetest.Prefixes("2001:db8::2/64")[0]), Flags: syscall.IFA_F_NODAD}))
	all := []int{6641, 6642, 6643, 6644, 6645, 6649, 6651}
	listen(t, all)
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
	must.Succeed(t, (&guard{known: true}).apply(t.Context())) // as the clean-up does
	if tables, err := exec.CommandContext(t.Context(), "nft", "list", "tables").CombinedOutput(); err != nil || strings.Contains(string(tables), guardTable) {
		t.Errorf("nftables: %s, %v", tables, err)
	}
}

// guarded returns an OVNCluster whose databases are on node-1, 192.0.2.1, and which no other node may use.
func guarded() *v1alpha1.OVNCluster {
	cluster := &v1alpha1.OVNCluster{}
	member := []v1alpha1.DatabaseMember{{Node: "node-1", Address: "192.0.2.1"}, {Node: "node-1", Address: "2001:db8::1"}}
	cluster.Status.Northbound.Members, cluster.Status.Southbound.Members, cluster.Status.Clients = member, member, []string{"192.0.2.1"}
	return cluster
}

// listen accepts connections on the databases' ports until the test ends.
func listen(t *testing.T, ports []int) {
	t.Helper()
	for _, port := range ports {
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		must.Succeed(t, err)
		t.Cleanup(func() { _ = listener.Close() })
	}
}

// TestPortsAreClosedBeforeTheOVNClusterIsKnown reboots a node, which empties nftables and the runtime directory.
func TestPortsAreClosedBeforeTheOVNClusterIsKnown(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	there, ports := nodetest.Wire(t), []int{6641, 6643, 6644, 6649}
	listen(t, ports)
	o := Options{ConfigDir: t.TempDir(), OVNRunDir: t.TempDir()}
	first := newGuard(o)
	must.Succeed(t, first.restore(t.Context()))
	if portguard.Reported(o.OVNRunDir) {
		t.Error("a node that has never read the OVNCluster reports a guard")
	}
	first.follow(guarded(), "node-1")
	must.Succeed(t, first.apply(t.Context()))
	nodetest.NFT(t, "flush ruleset")
	o.OVNRunDir = t.TempDir()
	if open := reach(t, there, "192.0.2.1", ports); len(open) == 0 {
		t.Fatal("the ports are closed without a table: this test proves nothing")
	}
	rebooted := newGuard(o)
	must.Succeed(t, rebooted.restore(t.Context()))
	if open := reach(t, there, "192.0.2.1", ports); len(open) > 0 {
		t.Errorf("after a reboot, without the API server, are open %v", open)
	}
	if !portguard.Reported(o.OVNRunDir) {
		t.Error("the databases do not learn that the ports are closed")
	}

	rebooted.follow(&v1alpha1.OVNCluster{}, "node-1")
	must.Succeed(t, rebooted.apply(t.Context()))
	if open := reach(t, there, "192.0.2.1", ports); len(open) > 0 {
		t.Errorf("with an OVNCluster that was created again, without a record, are open %v", open)
	}

	elsewhere := guarded()
	elsewhere.Spec.Central.PortAccess = v1alpha1.PortAccessOpen
	rebooted.follow(elsewhere, "node-1")
	must.Succeed(t, rebooted.apply(t.Context()))
	if portguard.Reported(o.OVNRunDir) {
		t.Error("open ports are reported as closed")
	}
	nodetest.NFT(t, "flush ruleset")
	must.Succeed(t, newGuard(o).restore(t.Context()))
	if open := reach(t, there, "192.0.2.1", ports); !slices.Equal(open, ports) {
		t.Errorf("with open access, after a reboot, are open %v", open)
	}
}

func TestConnectionsOfOneSourceAreLimited(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	there := nodetest.Wire(t)
	other := must.Value(netlink.NewHandleAt(there))
	peer := must.Value(other.LinkByName("peer"))
	must.Succeed(t, other.AddrAdd(peer, &netlink.Addr{IPNet: netipx.PrefixIPNet(nodetest.Prefixes("192.0.2.3/24")[0])}))
	listen(t, []int{6642})
	var g guard
	g.follow(guarded(), "node-1")
	must.Succeed(t, g.apply(t.Context()))
	const attempts = 300
	began := time.Now()
	accepted := connects(t, there, "192.0.2.2", attempts)
	if permitted := 60 + 20*(int(time.Since(began)/time.Second)+1); accepted < 60 || accepted > permitted {
		t.Errorf("%d of %d connections of a source are accepted, want 60 to %d", accepted, attempts, permitted)
	}
	if n := connects(t, there, "192.0.2.3", 10); n != 10 {
		t.Errorf("%d of 10 connections of another source are accepted", n)
	}
	must.Succeed(t, g.apply(t.Context()))
	if n := g.rewritten.Load(); n > 0 {
		t.Errorf("connections count as %d changes of the table", n)
	}
}

// connects returns how many of a number of connections from an address to port 6642 are accepted.
func connects(t *testing.T, from netns.NsHandle, source string, attempts int) (accepted int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := must.Value(netns.Get())
	defer here.Close()
	must.Succeed(t, netns.Set(from))
	defer func() { must.Succeed(t, netns.Set(here)) }()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: time.Minute}
	for range attempts {
		if conn, err := dialer.Dial("tcp", "192.0.2.1:6642"); err == nil {
			accepted++
			must.Succeed(t, conn.Close())
		}
	}
	return accepted
}

// TestPodsReachNoDatabase connects from a pod to the databases of its own node, and of another one through its node.
func TestPodsReachNoDatabase(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	there := nodetest.Wire(t)
	ports := []int{6641, 6642, 6644, 6649, 8080}
	listen(t, ports)
	pod := podNamespace(t)
	listenIn(t, there, ports)
	must.Succeed(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600))
	other := must.Value(netlink.NewHandleAt(there))
	must.Succeed(t, other.RouteAdd(&netlink.Route{Dst: netipx.PrefixIPNet(netip.MustParsePrefix("10.16.0.0/16")), Gw: net.ParseIP("192.0.2.1")}))
	if open := reach(t, pod, "192.0.2.2", ports); !slices.Equal(open, ports) {
		t.Fatalf("without a guard are open %v", open)
	}
	cluster := guarded()
	cluster.Status.Southbound.Members = append(cluster.Status.Southbound.Members, v1alpha1.DatabaseMember{Node: "node-2", Address: "192.0.2.2"})
	for _, node := range []string{"node-1", "node-9"} {
		var g guard
		g.follow(cluster, node)
		must.Succeed(t, g.apply(t.Context()))
		for _, address := range []string{"192.0.2.1", "192.0.2.2"} {
			if open := reach(t, pod, address, ports); !slices.Equal(open, []int{8080}) {
				t.Errorf("on %s, of %s are open %v to a pod", node, address, open)
			}
		}
	}
	cluster.Spec.Central.PortAccess = v1alpha1.PortAccessOpen
	var g guard
	g.follow(cluster, "node-1")
	must.Succeed(t, g.apply(t.Context()))
	if open := reach(t, pod, "192.0.2.2", ports); !slices.Equal(open, ports) {
		t.Errorf("with open access are open %v", open)
	}
}

// podNamespace returns a namespace with the address 10.16.0.5, behind the node's interface ovn0.
func podNamespace(t *testing.T) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := must.Value(netns.Get())
	pod := must.Value(netns.New())
	must.Succeed(t, netns.Set(here))
	t.Cleanup(func() { _ = errors.Join(here.Close(), pod.Close()) })
	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ovn0"}, PeerName: "eth0"}))
	must.Succeed(t, netlink.LinkSetNsFd(must.Value(netlink.LinkByName("eth0")), int(pod)))
	node := must.Value(netlink.LinkByName("ovn0"))
	must.Succeed(t, netlink.LinkSetUp(node))
	must.Succeed(t, kernel.AddAddress(node, netip.MustParsePrefix("10.16.0.1/16")))
	inside := must.Value(netlink.NewHandleAt(pod))
	eth0 := must.Value(inside.LinkByName("eth0"))
	must.Succeed(t, inside.LinkSetUp(eth0))
	must.Succeed(t, inside.AddrAdd(eth0, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("10.16.0.5/16"))}))
	must.Succeed(t, inside.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP("10.16.0.1")}))
	return pod
}

// listenIn is listen in another namespace.
func listenIn(t *testing.T, where netns.NsHandle, ports []int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := must.Value(netns.Get())
	defer here.Close()
	must.Succeed(t, netns.Set(where))
	defer func() { must.Succeed(t, netns.Set(here)) }()
	listen(t, ports)
}
