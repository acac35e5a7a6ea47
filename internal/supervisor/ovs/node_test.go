// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/mistakes"
	"github.com/kiln-net/kiln/internal/must"
	"github.com/kiln-net/kiln/internal/nodetest"
	"github.com/kiln-net/kiln/internal/supervisor"
	"github.com/kiln-net/kiln/internal/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/internal/supervisor/northd"
	"github.com/kiln-net/kiln/internal/supervisor/ovsdb"
	"github.com/kiln-net/kiln/internal/supervisor/supervisortest"
	"github.com/kiln-net/kiln/internal/supervisor/unixctl"
	"github.com/kiln-net/kiln/internal/uplink"
	"github.com/kiln-net/kiln/internal/version"
)

// wire makes eth1 with its addresses and a route, and its peer in a second namespace, which it returns.
func wire(t *testing.T) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := must.Value(netns.Get())
	there := must.Value(netns.New())
	must.Succeed(t, netns.Set(here))
	t.Cleanup(func() { _ = errors.Join(here.Close(), there.Close()) })

	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1", MTU: 1500}, PeerName: "peer"}))
	must.Succeed(t, netlink.LinkSetNsFd(must.Value(netlink.LinkByName("peer")), int(there)))
	lo, eth1 := must.Value(netlink.LinkByName("lo")), must.Value(netlink.LinkByName("eth1"))
	for _, link := range []netlink.Link{lo, eth1} {
		must.Succeed(t, netlink.LinkSetUp(link))
	}
	for _, a := range prefixes("192.0.2.1/24", "2001:db8::1/64") {
		must.Succeed(t, uplink.AddAddress(eth1, a))
	}
	must.Succeed(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth1.Attrs().Index, Dst: ipNet(netip.MustParsePrefix("198.51.100.0/24")), Gw: net.ParseIP("192.0.2.2")}))
	must.Succeed(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth1.Attrs().Index, Family: netlink.FAMILY_V6, Gw: net.ParseIP("2001:db8::2"), Priority: 1024}))

	other := must.Value(netlink.NewHandleAt(there))
	peer := must.Value(other.LinkByName("peer"))
	must.Succeed(t, other.LinkSetUp(peer))
	must.Succeed(t, other.AddrAdd(peer, &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix("192.0.2.2/24"))}))
	return there
}

// central runs both databases and ovn-northd, with the OVNCluster that points to them.
type central struct {
	servers, chassis supervisortest.Authority
	cluster          *v1alpha1.OVNCluster
	southbound       string // socket
	tls              string // directory of the northbound server's certificate
	// daemons are the levels of the logs by the control sockets of the daemons.
	daemons map[string]*supervisor.LogLevel
}

func startCentral(t *testing.T, changes ...func(*ovsdb.Database)) central {
	t.Helper()
	c := central{servers: supervisortest.NewAuthority(t, "servers"), chassis: supervisortest.NewAuthority(t, "chassis")}
	bootstrap := v1alpha1.DatabaseStatus{
		BootstrapNode: "node-1", Members: []v1alpha1.DatabaseMember{{Node: "node-1", Address: "127.0.0.1"}},
	}
	c.cluster = &v1alpha1.OVNCluster{Status: v1alpha1.OVNClusterStatus{Northbound: bootstrap, Southbound: bootstrap}}
	run := supervisortest.RunDir(t)
	c.daemons = map[string]*supervisor.LogLevel{}
	level := func(control string) *supervisor.LogLevel {
		l := &supervisor.LogLevel{}
		c.daemons[filepath.Join(run, control)] = l
		return l
	}
	for i, database := range []ovsdb.Database{ovsdb.Northbound, ovsdb.Southbound} {
		trusted := c.servers.PEM
		if database.Name == ovsdb.Southbound.Name {
			trusted = slices.Concat(c.servers.PEM, c.chassis.PEM)
		}
		database.Schema = supervisortest.File(t, database.Schema)
		for _, change := range changes {
			change(&database)
		}
		o := ovsdb.Options{
			Database: database, DataDir: t.TempDir(), RunDir: run, Node: "node-1", Address: netip.MustParseAddr("127.0.0.1"),
			TLSDir:        c.servers.TLSDir(t, "server", map[string][]byte{"ca.crt": trusted, "admin-ca.crt": c.servers.PEM}),
			HealthAddress: "127.0.0.1:" + strconv.Itoa(6661+i),
			Programs: ovsdb.Programs{
				Server: supervisortest.Program(t, "usr/sbin/ovsdb-server"), Tool: supervisortest.Program(t, "usr/bin/ovsdb-tool"),
			},
			Clusters: clusters(c.cluster), Leads: make(chan bool, 100), LogLevel: level(database.Stem + ".ctl"), Log: supervisortest.Log(t),
		}
		if database.Name == ovsdb.Northbound.Name {
			c.tls = o.TLSDir
		}
		background(t, func(ctx context.Context) error { return ovsdb.Run(ctx, o) })
		healthy(t, o.HealthAddress)
	}
	leads := make(chan bool, 100)
	o := northd.Options{
		RunDir: run, HealthAddress: "127.0.0.1:10671", Program: supervisortest.Program(t, "usr/bin/ovn-northd"),
		Node: "node-1", MetricsAddress: "127.0.0.1:6655",
		TLSDir:   c.servers.TLSDir(t, "server", map[string][]byte{"ca.crt": c.servers.PEM, "admin-ca.crt": c.servers.PEM}),
		Clusters: clusters(c.cluster), Leads: leads, Writes: make(chan string, 100), Runs: make(chan string, 100), LogLevel: level("ovn-northd.ctl"), Log: supervisortest.Log(t),
	}
	background(t, func(ctx context.Context) error { return northd.Run(ctx, o) })
	healthy(t, o.HealthAddress)
	if !<-leads {
		t.Error("the only ovn-northd does not say that it is active")
	}
	c.southbound = filepath.Join(run, "ovnsb_db.sock")
	return c
}

func clusters(c *v1alpha1.OVNCluster) chan *v1alpha1.OVNCluster {
	channel := make(chan *v1alpha1.OVNCluster, 1)
	channel <- c
	return channel
}

// background runs f until the test ends or the returned function is called, which waits and returns f's error.
func background(t *testing.T, f func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	supervisortest.Watch(ctx, t, "a process of the test", done)
	stop = func() error {
		cancel()
		err := <-done
		done <- err
		return err
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}

func nodeOptions(t *testing.T, c central) Options {
	t.Helper()
	trust := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(trust, "sb-server.crt"), c.servers.PEM, 0o600))
	return Options{
		Datapath: v1alpha1.DatapathUserspace, TunnelInterface: "eth1", TunnelTypes: []v1alpha1.TunnelType{v1alpha1.TunnelGeneve},
		Node: "node-1", NodeAddress: "192.0.2.1", TrustDir: trust,
		RunDir: supervisortest.RunDir(t), OVNRunDir: supervisortest.RunDir(t), ConfigDir: filepath.Join(t.TempDir(), "openvswitch"),
		HealthAddress: "127.0.0.1:10672",
		Programs: Programs{
			Tool:       supervisortest.Program(t, "usr/bin/ovsdb-tool"),
			Server:     supervisortest.Program(t, "usr/sbin/ovsdb-server"),
			Switch:     supervisortest.Program(t, "usr/lib/openvswitch-switch/ovs-vswitchd"),
			Controller: supervisortest.Program(t, "usr/bin/ovn-controller"),
			OpenFlow:   supervisortest.Program(t, "usr/bin/ovs-ofctl"),
			Schema:     supervisortest.File(t, "usr/share/openvswitch/vswitch.ovsschema"),
		},
		Clusters: clusters(c.cluster), Requests: signer(t, c.chassis), Log: supervisortest.Log(t),
		LogLevel: &supervisor.LogLevel{}, ControllerLogLevel: &supervisor.LogLevel{},
	}
}

// untilLevel waits until the daemons of a control socket pattern have a level.
func untilLevel(t *testing.T, want string, controls ...string) {
	t.Helper()
	for _, control := range controls {
		supervisortest.Eventually(t, control+" has the level "+want, func() error {
			sockets, err := filepath.Glob(control)
			for _, socket := range sockets { // a killed daemon has left one behind
				list, err := unixctl.Call(t.Context(), socket, "vlog/list")
				if err != nil {
					continue
				}
				if got, err := supervisortest.ConsoleLevel(list); err == nil && got == want {
					return nil
				}
			}
			return errors.Join(errors.New("none of its sockets has it"), err)
		})
	}
}

// TestUserspaceNode runs a node with real daemons, and a real central over TLS.
func TestUserspaceNode(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	there := wire(t)
	c := startCentral(t)
	o := nodeOptions(t, c)
	stop := background(t, func(ctx context.Context) error { return Run(ctx, o) })
	healthy(t, o.HealthAddress)

	t.Run("daemons report their versions", func(t *testing.T) {
		for address, runs := range map[string]version.Programs{
			"127.0.0.1:6661":  {OpenVSwitch: "3.5"},
			"127.0.0.1:6662":  {OpenVSwitch: "3.5"},
			"127.0.0.1:10671": {OVN: "25.03"},
			o.HealthAddress:   {OVN: "25.03", OpenVSwitch: "3.5"},
		} {
			served, err := version.Get(t.Context(), netip.MustParseAddrPort(address))
			must.Succeed(t, err)
			for got, want := range map[string]string{served.Kiln: version.Kiln, served.OVN: runs.OVN, served.OpenVSwitch: runs.OpenVSwitch} {
				if !strings.HasPrefix(got, want) || (got == "") != (want == "") {
					t.Errorf("%s serves %+v, and runs %+v", address, served, runs)
				}
			}
		}
	})
	supervisortest.Secret(must.Value(os.ReadFile(filepath.Join(o.certificates(), keyFile))))
	moved := func() error { return checkMoved(t) }
	supervisortest.Eventually(t, "the addresses are on br-phy", moved)
	supervisortest.Eventually(t, "the chassis is registered", func() error { return checkChassis(t, c.southbound) })
	supervisortest.Eventually(t, "the peer gets one answer to each ping", func() error { return pingFrom(there, "192.0.2.1") })

	t.Run("the chassis' certificate writes rows of its role only", func(t *testing.T) {
		files := []string{filepath.Join(o.certificates(), keyFile), filepath.Join(o.certificates(), certificateFile)}
		argv := append(supervisortest.Program(t, "usr/bin/ovsdb-client"), "--private-key="+files[0], "--certificate="+files[1],
			"--ca-cert="+filepath.Join(o.TrustDir, "sb-server.crt"), "transact", "ssl:127.0.0.1:6642",
			`["OVN_Southbound",{"op":"delete","table":"SB_Global","where":[]}]`)
		output, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).Output()
		if err != nil || !strings.Contains(string(output), "permission error") {
			t.Errorf("%s, %v", output, err)
		}
	})
	switches := []string{filepath.Join(o.RunDir, "ovs-vswitchd.*.ctl"), filepath.Join(o.RunDir, "ovsdb-server.*.ctl")}
	t.Run("levels of logs change while daemons run", func(t *testing.T) {
		for control, level := range c.daemons {
			level.Set("dbg")
			untilLevel(t, "dbg", control)
			level.Set("warn")
			untilLevel(t, "warn", control)
		}
		o.LogLevel.Set("err")
		o.ControllerLogLevel.Set("warn")
		untilLevel(t, "err", switches...)
		untilLevel(t, "warn", filepath.Join(o.OVNRunDir, "ovn-controller.*.ctl"))
	})
	t.Run("the report distinguishes faults of daemons and ports", func(t *testing.T) { checkReport(t, c, o) })
	t.Run("after ovs-vswitchd was killed", func(t *testing.T) {
		kill(t, filepath.Join(o.RunDir, "ovs-vswitchd.pid"))
		supervisortest.Eventually(t, "the addresses are there", moved)
		supervisortest.Eventually(t, "the peer is answered", func() error { return pingFrom(there, "192.0.2.1") })
		healthy(t, o.HealthAddress)
		untilLevel(t, "err", control(t, o.RunDir, "ovs-vswitchd"))
	})
	t.Run("after ovs-vswitchd cleaned up, which removes the interface of br-phy", func(t *testing.T) {
		before := must.Value(netlink.LinkByName(bridgeName)).Attrs().Index
		_, err := unixctl.Call(t.Context(), control(t, o.RunDir, "ovs-vswitchd"), "exit", "--cleanup")
		must.Succeed(t, err)
		supervisortest.Eventually(t, "there is a new interface", func() error {
			if link, err := uplink.Link(bridgeName); err != nil || link == nil || link.Attrs().Index == before {
				return errors.Join(errors.New("not yet"), err)
			}
			return nil
		})
		supervisortest.Eventually(t, "the addresses are back", moved)
		supervisortest.Eventually(t, "the peer is answered", func() error { return pingFrom(there, "192.0.2.1") })
		healthy(t, o.HealthAddress)
	})
	t.Run("after ovn-controller and the database were killed", func(t *testing.T) {
		kill(t, filepath.Join(o.OVNRunDir, "ovn-controller.pid"))
		kill(t, filepath.Join(o.RunDir, "ovsdb-server.pid"))
		supervisortest.Eventually(t, "all serve again", func() error { return probe(o.HealthAddress) })
	})
	t.Run("an address that the uplink gets is moved too", func(t *testing.T) {
		must.Succeed(t, uplink.AddAddress(must.Value(netlink.LinkByName("eth1")), netip.MustParsePrefix("192.0.2.9/24")))
		supervisortest.Eventually(t, "it is on br-phy", func() error { return checkMoved(t, "192.0.2.9/24") })
	})
	t.Run("after a restart of the container", func(t *testing.T) {
		must.Succeed(t, stop())
		if err := checkChassis(t, c.southbound); err != nil {
			t.Errorf("the chassis must stay registered over a restart: %v", err)
		}
		o.Clusters, o.Requests = clusters(c.cluster), signer(t, c.chassis)
		stop = background(t, func(ctx context.Context) error { return Run(ctx, o) })
		supervisortest.Eventually(t, "the addresses are on br-phy", func() error { return checkMoved(t, "192.0.2.9/24") })
		healthy(t, o.HealthAddress)
	})
	t.Run("after the uplink got another name, while no other interface had its addresses", func(t *testing.T) {
		for _, name := range []string{"eth9", "eth1"} {
			must.Succeed(t, stop())
			former := must.Value(netlink.LinkByName(o.TunnelInterface))
			must.Succeed(t, netlink.LinkSetDown(former))
			must.Succeed(t, netlink.LinkSetName(former, name))
			o.TunnelInterface, o.Clusters, o.Requests = name, clusters(c.cluster), signer(t, c.chassis)
			stop = background(t, func(ctx context.Context) error { return Run(ctx, o) })
			healthy(t, o.HealthAddress)
			supervisortest.Eventually(t, "the peer gets one answer to each ping by "+name, func() error { return pingFrom(there, "192.0.2.1") })
		}
		supervisortest.Eventually(t, "the addresses are on br-phy", func() error { return checkMoved(t, "192.0.2.9/24") })
	})
	t.Run("after it was removed, even when the removal was interrupted", func(t *testing.T) {
		must.Succeed(t, stop())
		interrupted, cancel := context.WithCancel(t.Context())
		cancel()
		if err := CleanUp(interrupted, o); err == nil {
			t.Error("an interrupted removal says that it is done")
		}
		must.Succeed(t, CleanUp(t.Context(), o))
		checkRemoved(t, o)
		must.Succeed(t, CleanUp(t.Context(), o))
		supervisortest.Eventually(t, "the peer gets one answer to each ping", func() error { return pingFrom(there, "192.0.2.1") })
	})
}

// checkRemoved checks that eth1 is as wire and the test made it, and that nothing of Open vSwitch is left.
func checkRemoved(t *testing.T, o Options) {
	t.Helper()
	seen, err := observe(must.Value(netlink.LinkByName("eth1")), nil)
	must.Succeed(t, err)
	want := prefixes("192.0.2.1/24", "192.0.2.9/24", "2001:db8::1/64")
	if missing := lacking(want, seen.UplinkAddresses); len(missing) > 0 || len(seen.UplinkRoutes) != 2 {
		t.Errorf("eth1 has %v and %v", seen.UplinkAddresses, seen.UplinkRoutes)
	}
	for _, link := range must.Value(uplink.Whole(netlink.LinkList)) {
		if name := link.Attrs().Name; name != "lo" && name != "eth1" {
			t.Errorf("interface %s is left", name)
		}
	}
	if tables, err := exec.CommandContext(t.Context(), "nft", "list", "tables").CombinedOutput(); err != nil || len(tables) > 0 {
		t.Errorf("nftables: %s, %v", tables, err)
	}
	for _, directory := range []string{o.RunDir, o.OVNRunDir, o.ConfigDir} {
		if left := must.Value(os.ReadDir(directory)); len(left) > 0 {
			t.Errorf("left in %s: %v", directory, left)
		}
	}
}

func TestANodeThatKilnHasNotUsedIsLeftAlone(t *testing.T) {
	directory := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(directory, "conf.db"), []byte("of the node's own Open vSwitch"), 0o600))
	must.Succeed(t, CleanUp(t.Context(), Options{ConfigDir: directory, RunDir: directory, OVNRunDir: directory}))
	if left := must.Value(os.ReadDir(directory)); len(left) != 1 {
		t.Errorf("left are %v", left)
	}
}

func TestUnknownTunnelInterfaceNamesThoseThatAre(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	wire(t)
	_, err := tunnelInterface(Options{Node: "node-1", TunnelInterface: "eth9"})
	if err == nil || !strings.Contains(err.Error(), "interface eth9 is not on node node-1; its interfaces are lo, eth1") {
		t.Fatalf("got %v", err)
	}
	mistakes.Sees(t, 7, err.Error())
}

func TestAKernelWithoutDatapathIsNamed(t *testing.T) {
	mistakes.Sees(t, 6, noKernelDatapath("node-1", syscall.ENOENT).Error())
}

func TestTunnelInterfaceOfNodeAddress(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	wire(t)
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
	wire(t)
	eth1 := must.Value(netlink.LinkByName("eth1"))
	o := Options{Node: "node-1", NodeAddress: "192.0.2.1", Datapath: v1alpha1.DatapathKernel, RunDir: t.TempDir()}
	n := node{tunnels: "eth1", options: o, providers: newProviders(o)}
	for _, step := range []struct {
		name        string
		add, remove []netip.Prefix
		want, err   string
	}{
		{name: "the address of the node", want: "192.0.2.1"},
		{name: "a second address", add: prefixes("203.0.113.7/24"), want: "192.0.2.1"},
		{name: "the node has lost its address", remove: prefixes("192.0.2.1/24"), want: "203.0.113.7"},
		{name: "no address of the family", remove: prefixes("203.0.113.7/24"), err: "interface eth1 of node node-1 has no address"},
		{name: "an address of another network", add: prefixes("198.51.100.7/24"), want: "198.51.100.7"},
		{name: "the first address again", add: prefixes("192.0.2.1/24"), want: "192.0.2.1"},
	} {
		must.Succeed(t, uplink.RemoveAddresses(eth1, uplink.Plain(step.remove), nil))
		for _, a := range step.add {
			must.Succeed(t, uplink.AddAddress(eth1, a))
		}
		got, err := n.tunnelAddress(t.Context(), nil)
		if step.err != "" {
			if err == nil || !strings.Contains(err.Error(), step.err) {
				t.Errorf("%s: %s, %v", step.name, got, err)
			}
		} else if err != nil || got.String() != step.want {
			t.Errorf("%s: tunnels end at %s, %v; want %s", step.name, got, err, step.want)
		}
	}
}

func checkMoved(t *testing.T, more ...string) error {
	t.Helper()
	bridge, err := uplink.Link(bridgeName)
	if err != nil || bridge == nil {
		return fmt.Errorf("br-phy is not there: %w", err)
	}
	eth1 := must.Value(netlink.LinkByName("eth1"))
	seen, err := observe(eth1, bridge)
	if err != nil {
		return err
	}
	want := prefixes(append([]string{"192.0.2.1/24", "2001:db8::1/64"}, more...)...)
	if missing := lacking(want, seen.BridgeAddresses); len(missing) > 0 || len(seen.UplinkAddresses) > 0 {
		return fmt.Errorf("addresses: br-phy has %v, eth1 %v", seen.BridgeAddresses, seen.UplinkAddresses)
	}
	if len(seen.BridgeRoutes) != 2 || len(seen.UplinkRoutes) > 0 {
		return fmt.Errorf("routes: br-phy has %v, eth1 %v", seen.BridgeRoutes, seen.UplinkRoutes)
	}
	if !slices.Equal(bridge.Attrs().HardwareAddr, eth1.Attrs().HardwareAddr) || bridge.Attrs().MTU != eth1.Attrs().MTU {
		return fmt.Errorf("br-phy has MAC %s and MTU %d", bridge.Attrs().HardwareAddr, bridge.Attrs().MTU)
	}
	return nil
}

func checkChassis(t *testing.T, socket string) error {
	t.Helper()
	conn, err := jsonrpc.Dial(t.Context(), socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	var answer []struct {
		Rows []struct{ Name, Hostname string }
	}
	if err := conn.Call("transact", []any{"OVN_Southbound", map[string]any{"op": "select", "table": "Chassis", "where": []any{}}}, &answer); err != nil {
		return err
	}
	if len(answer) != 1 || len(answer[0].Rows) != 1 || answer[0].Rows[0].Name != "node-1" || answer[0].Rows[0].Hostname != "node-1" {
		return fmt.Errorf("chassis: %+v", answer)
	}
	return nil
}

// pingFrom sends one echo request from a namespace and expects exactly one reply.
func pingFrom(ns netns.NsHandle, address string) error {
	network, local, protocol := "ip4:icmp", "0.0.0.0", 1
	var ask, answer icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if netip.MustParseAddr(address).Is6() {
		network, local, protocol, ask, answer = "ip6:ipv6-icmp", "::", 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var conn *icmp.PacketConn
	err := within(ns, func() (err error) {
		conn, err = icmp.ListenPacket(network, local)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	id := int(time.Now().UnixNano() & 0xffff)
	request, err := (&icmp.Message{Type: ask, Body: &icmp.Echo{ID: id, Seq: 1}}).Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := conn.WriteTo(request, &net.IPAddr{IP: net.ParseIP(address)}); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		return err
	}
	replies, buffer := 0, make([]byte, 1500)
	for {
		n, _, err := conn.ReadFrom(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return err
		}
		message, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil || message.Type != answer {
			continue
		}
		if echo, ok := message.Body.(*icmp.Echo); ok && echo.ID == id {
			replies++
		}
	}
	if replies != 1 {
		return fmt.Errorf("%d replies to one request", replies)
	}
	return nil
}

func kill(t *testing.T, pidFile string) {
	t.Helper()
	text := must.Value(os.ReadFile(pidFile))
	must.Succeed(t, syscall.Kill(must.Value(strconv.Atoi(strings.TrimSpace(string(text)))), syscall.SIGKILL))
}

// control is the path of the socket where ovs-appctl(8) looks for it.
func control(t *testing.T, runDir, name string) string {
	t.Helper()
	pid := strings.TrimSpace(string(must.Value(os.ReadFile(filepath.Join(runDir, name+".pid")))))
	return filepath.Join(runDir, name+"."+pid+".ctl")
}

func healthy(t *testing.T, address string) {
	t.Helper()
	supervisortest.Eventually(t, address+" is ready", func() error { return probe(address) })
}

func probe(address string) error {
	response, err := http.Get("http://" + address + "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text := make([]byte, 1024)
		n, _ := response.Body.Read(text)
		return fmt.Errorf("%s: %s", response.Status, text[:n])
	}
	return nil
}
