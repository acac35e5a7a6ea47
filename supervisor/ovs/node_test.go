// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/bridgestest"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/northd"
	"github.com/kiln-net/kiln/supervisor/ovsdb"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// central runs both databases and ovn-northd, with the OVNCluster that points to them.
type central struct {
	servers, chassis supervisortest.Authority
	cluster          *v1alpha1.OVNCluster
	southbound       string // socket
	tls              string // directory of the northbound server's certificate
	// daemons are the levels of the logs by the control sockets of the daemons.
	daemons map[string]*supervisor.LogLevel
}

func startCentral(t *testing.T) central {
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
	there := nodetest.Wire(t)
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
	moved := func() error { return bridgestest.Moved() }
	supervisortest.Eventually(t, "the addresses are on br-phy", moved)
	supervisortest.Eventually(t, "the chassis is registered", func() error { return checkChassis(t, c.southbound) })
	supervisortest.Eventually(t, "the peer gets one answer to each ping", func() error { return nodetest.Ping(there, "192.0.2.1") })

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
		supervisortest.Eventually(t, "the peer is answered", func() error { return nodetest.Ping(there, "192.0.2.1") })
		healthy(t, o.HealthAddress)
		untilLevel(t, "err", control(t, o.RunDir, "ovs-vswitchd"))
	})
	t.Run("after ovs-vswitchd cleaned up, which removes the interface of br-phy", func(t *testing.T) {
		before := must.Value(netlink.LinkByName(providerbridge.Tunnels)).Attrs().Index
		_, err := unixctl.Call(t.Context(), control(t, o.RunDir, "ovs-vswitchd"), "exit", "--cleanup")
		must.Succeed(t, err)
		supervisortest.Eventually(t, "there is a new interface", func() error {
			if link, err := kernel.Link(providerbridge.Tunnels); err != nil || link == nil || link.Attrs().Index == before {
				return errors.Join(errors.New("not yet"), err)
			}
			return nil
		})
		supervisortest.Eventually(t, "the addresses are back", moved)
		supervisortest.Eventually(t, "the peer is answered", func() error { return nodetest.Ping(there, "192.0.2.1") })
		healthy(t, o.HealthAddress)
	})
	t.Run("after ovn-controller and the database were killed", func(t *testing.T) {
		kill(t, filepath.Join(o.OVNRunDir, "ovn-controller.pid"))
		kill(t, filepath.Join(o.RunDir, "ovsdb-server.pid"))
		supervisortest.Eventually(t, "all serve again", func() error { return probe(o.HealthAddress) })
	})
	t.Run("an address that the uplink gets is moved too", func(t *testing.T) {
		must.Succeed(t, kernel.AddAddress(must.Value(netlink.LinkByName("eth1")), netip.MustParsePrefix("192.0.2.9/24")))
		supervisortest.Eventually(t, "it is on br-phy", func() error { return bridgestest.Moved("192.0.2.9/24") })
	})
	t.Run("after a restart of the container", func(t *testing.T) {
		must.Succeed(t, stop())
		if err := checkChassis(t, c.southbound); err != nil {
			t.Errorf("the chassis must stay registered over a restart: %v", err)
		}
		o.Clusters, o.Requests = clusters(c.cluster), signer(t, c.chassis)
		stop = background(t, func(ctx context.Context) error { return Run(ctx, o) })
		supervisortest.Eventually(t, "the addresses are on br-phy", func() error { return bridgestest.Moved("192.0.2.9/24") })
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
			supervisortest.Eventually(t, "the peer gets one answer to each ping by "+name, func() error { return nodetest.Ping(there, "192.0.2.1") })
		}
		supervisortest.Eventually(t, "the addresses are on br-phy", func() error { return bridgestest.Moved("192.0.2.9/24") })
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
		supervisortest.Eventually(t, "the peer gets one answer to each ping", func() error { return nodetest.Ping(there, "192.0.2.1") })
	})
}

// checkRemoved checks that eth1 is as wire and the test made it, and that nothing of Open vSwitch is left.
func checkRemoved(t *testing.T, o Options) {
	t.Helper()
	seen, err := kernel.Observe(must.Value(netlink.LinkByName("eth1")), nil)
	must.Succeed(t, err)
	want := nodetest.Prefixes("192.0.2.1/24", "192.0.2.9/24", "2001:db8::1/64")
	if missing := bridgestest.Lacking(want, seen.UplinkAddresses); len(missing) > 0 || len(seen.UplinkRoutes) != 2 {
		t.Errorf("eth1 has %v and %v", seen.UplinkAddresses, seen.UplinkRoutes)
	}
	for _, link := range must.Value(kernel.Whole(netlink.LinkList)) {
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

func TestAKernelWithoutDatapathIsNamed(t *testing.T) {
	mistakes.Sees(t, 6, noKernelDatapath("node-1", syscall.ENOENT).Error())
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
