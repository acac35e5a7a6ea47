// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go4.org/netipx"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/openflow"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestFlowsComeBackWithoutOVNController checks that the flows of the integration bridge are restored before ovn-controller has
// done anything, whatever state the previous container left behind.
func TestFlowsComeBackWithoutOVNController(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	c := startCentral(t)
	o := nodeOptions(t, c)
	stop := background(t, func(ctx context.Context) error { return Run(ctx, o) })
	healthy(t, o.HealthAddress)
	supervisortest.Eventually(t, "ovn-controller has installed its flows", func() error {
		if n := len(flowsOf(t, o)); n < 10 {
			return fmt.Errorf("%d flows", n)
		}
		return nil
	})
	_, err := openFlow(t.Context(), o, "add-meter", "meter=1 pktps stats bands=type=drop rate=10")
	must.Succeed(t, err)
	_, err = openFlow(t.Context(), o, "add-meter", "meter=2 kbps burst stats bands=type=drop rate=10 burst_size=20")
	must.Succeed(t, err)
	_, err = openFlow(t.Context(), o, "add-group", "group_id=7,type=select,selection_method=dp_hash,bucket=bucket_id=0,weight:100,actions=drop")
	must.Succeed(t, err)
	_, err = openFlow(t.Context(), o, "add-flow", "table=9,priority=1234,icmp,tun_metadata0=0x5,actions=meter:1,group:7")
	must.Succeed(t, err)
	a, b := logicalPort(t, o, c, "a", "10.0.0.1/24"), logicalPort(t, o, c, "b", "10.0.0.2/24")
	supervisortest.Eventually(t, "a reaches b", func() error { return nodetest.Ping(a, "10.0.0.2") })
	command(t, "usr/bin/ovn-nbctl", northbound(c), "--timeout=120", "--wait=hv", "sync") // packets are forwarded before the last flow is installed
	supervisortest.Eventually(t, "ovn-controller reports the flows of a", func() error { return isInstalled(t, o, "a_h") })
	before := flowsOf(t, o)
	limits := must.Value(openFlow(t.Context(), o, "dump-meters"))
	must.Succeed(t, stop())
	if err := nodetest.Ping(b, "10.0.0.1"); err == nil {
		t.Fatal("packets pass without ovs-vswitchd: nothing is proved here")
	}

	// From here on ovn-controller is a program that does nothing.
	idle := o
	idle.Programs.Controller = []string{"/bin/sh", "-c", "exec sleep 1000"}
	idle.Clusters, idle.Requests = clusters(c.cluster), signer(t, c.chassis)
	must.Succeed(t, os.WriteFile(o.management(), nil, 0o600)) // a stale socket, as a killed process leaves it
	begun := time.Now()
	stop = background(t, func(ctx context.Context) error { return Run(ctx, idle) })
	supervisortest.Eventually(t, "the flows are back", func() error {
		if there, err := exists(o.flows()); there || err != nil {
			return errors.Join(err, errors.New("they are still in the file"))
		}
		return nil
	})
	t.Logf("flows were back %s after the start", time.Since(begun).Round(time.Millisecond))
	if after := flowsOf(t, o); !maps.Equal(before, after) {
		t.Errorf("%d flows before, %d after", len(before), len(after))
		for flow := range before {
			if !after[flow] {
				t.Log("missing:", flow)
			}
		}
	}
	if after := must.Value(openFlow(t.Context(), o, "dump-meters")); !reflect.DeepEqual(meters(limits), meters(after)) {
		t.Errorf("meters before: %s, after: %s", limits, after)
	}
	checkNoRestoreWait(t, o)
	must.Succeed(t, isInstalled(t, o, "a_h"))
	supervisortest.Eventually(t, "a reaches b by the flows that were saved", func() error { return nodetest.Ping(a, "10.0.0.2") })
	must.Succeed(t, stop())

	// An interrupted bring-up must not leave ovs-vswitchd waiting for flows that never arrive.
	must.Succeed(t, os.RemoveAll(o.flows()))
	_, err = tool(t.Context(), o, "transact", o.database(),
		`["Open_vSwitch",{"op":"update","table":"Open_vSwitch","where":[],"row":{"other_config":["map",[["flow-restore-wait","true"]]]}}]`)
	must.Succeed(t, err)
	o.Clusters, o.Requests = clusters(c.cluster), signer(t, c.chassis)
	must.Succeed(t, forgetInstalled(t.Context(), o)) // no flows were saved, as after a reboot; Run does it too
	if left, err := tool(t.Context(), o, "query", o.database(), `["Open_vSwitch",{"op":"select","table":"Interface","where":[],"columns":["external_ids"]}]`); err != nil || strings.Contains(left, "ovn-installed\",\"true") {
		t.Errorf("interfaces: %s, %v", left, err)
	}
	background(t, func(ctx context.Context) error { return Run(ctx, o) })
	healthy(t, o.HealthAddress)
	checkNoRestoreWait(t, o)
	supervisortest.Eventually(t, "ovn-controller reports the flows of a again", func() error { return isInstalled(t, o, "a_h") })
	supervisortest.Eventually(t, "the flows are ovn-controller's", func() error {
		for flow := range flowsOf(t, o) {
			if strings.Contains(flow, "priority=1234") {
				return errors.New("a saved flow is still there")
			}
		}
		return nil
	})
}

// After a crash of ovs-vswitchd, the kernel's flows forward packets until ovn-controller has installed its own. The test's datapath is
// ovs-vswitchd's, so it checks only that the new process waits.
func TestACrashedSwitchWaitsForOVNController(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	before := keepsFlows
	t.Cleanup(func() { keepsFlows = before })
	keepsFlows = func(v1alpha1.Datapath) (bool, error) { return true, nil }
	nodetest.Wire(t)
	c := startCentral(t)
	o := nodeOptions(t, c)
	background(t, func(ctx context.Context) error { return Run(ctx, o) })
	healthy(t, o.HealthAddress)
	a, _ := logicalPort(t, o, c, "a", "10.0.0.1/24"), logicalPort(t, o, c, "b", "10.0.0.2/24")
	reaches := func() error { return nodetest.Ping(a, "10.0.0.2") }
	supervisortest.Eventually(t, "a reaches b", reaches)
	controller := must.Value(strconv.Atoi(strings.TrimSpace(string(must.Value(os.ReadFile(filepath.Join(o.OVNRunDir, "ovn-controller.pid")))))))
	must.Succeed(t, syscall.Kill(controller, syscall.SIGSTOP))
	kill(t, filepath.Join(o.RunDir, "ovs-vswitchd.pid"))
	supervisortest.Eventually(t, "the new ovs-vswitchd serves", func() error {
		if flowsOf(t, o) == nil {
			return errors.New("it does not")
		}
		return nil
	})
	if !restoreWaits(t, o) {
		t.Error("the new ovs-vswitchd has deleted the kernel's flows")
	}
	must.Succeed(t, syscall.Kill(controller, syscall.SIGCONT))
	supervisortest.Eventually(t, "a reaches b again", reaches)
	supervisortest.Eventually(t, "ovs-vswitchd no longer waits", func() error {
		if restoreWaits(t, o) {
			return errors.New("it waits")
		}
		return nil
	})
}

// logicalPort makes a port of the logical switch `s`, and a namespace with its interface and address. It returns the namespace.
func logicalPort(t *testing.T, o Options, c central, name, address string) netns.NsHandle {
	t.Helper()
	mac := "02:00:00:00:00:0" + strings.Split(address, ".")[3][:1]
	command(t, "usr/bin/ovn-nbctl", northbound(c), "--may-exist", "ls-add", "s", "--", "lsp-add", "s", name,
		"--", "lsp-set-addresses", name, mac+" "+strings.Split(address, "/")[0])
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := must.Value(netns.Get())
	there := must.Value(netns.New())
	must.Succeed(t, netns.Set(here))
	t.Cleanup(func() { _ = errors.Join(here.Close(), there.Close()) })
	hardware := must.Value(net.ParseMAC(mac))
	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name + "_h"}, PeerName: name + "_c", PeerHardwareAddr: hardware}))
	must.Succeed(t, netlink.LinkSetUp(must.Value(netlink.LinkByName(name+"_h"))))
	must.Succeed(t, netlink.LinkSetNsFd(must.Value(netlink.LinkByName(name+"_c")), int(there)))
	inside := must.Value(netlink.NewHandleAt(there))
	link := must.Value(inside.LinkByName(name + "_c"))
	must.Succeed(t, inside.LinkSetUp(link))
	must.Succeed(t, inside.AddrAdd(link, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix(address))}))
	command(t, "usr/bin/ovs-vsctl", "--db=unix:"+o.socket(), "--timeout=120", "add-port", database.Integration, name+"_h",
		"--", "set", "Interface", name+"_h", "external_ids:iface-id="+name)
	return there
}

// isInstalled returns an error unless ovn-controller has reported that it has installed the flows of an interface.
func isInstalled(t *testing.T, o Options, name string) error {
	t.Helper()
	argv := append(supervisortest.Program(t, "usr/bin/ovs-vsctl"), "--db=unix:"+o.socket(), "--timeout=120", "get", "Interface", name, "external_ids:ovn-installed")
	out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
	if err == nil && !strings.Contains(string(out), "true") {
		err = fmt.Errorf("ovn-installed of %s: %s", name, out)
	}
	return err
}

// northbound is the option with which tools connect to the northbound database.
func northbound(c central) string {
	return "--db=unix:" + filepath.Join(filepath.Dir(c.southbound), "ovnnb_db.sock")
}

func command(t *testing.T, program string, args ...string) {
	t.Helper()
	argv := append(supervisortest.Program(t, program), args...)
	if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", program, args, err, out)
	}
}

// flowsOf returns the flows of the integration bridge without counters; nil if the bridge does not respond.
func flowsOf(t *testing.T, o Options) map[string]bool {
	t.Helper()
	out, err := openFlow(t.Context(), o, "--no-names", "--no-stats", "dump-flows")
	if err != nil {
		return nil
	}
	flows := map[string]bool{}
	for line := range strings.Lines(string(entries(out))) {
		flows[strings.TrimSpace(line)] = true
	}
	return flows
}

func checkNoRestoreWait(t *testing.T, o Options) {
	t.Helper()
	if restoreWaits(t, o) {
		t.Errorf("other_config has %s", restoreWait)
	}
}

// restoreWaits reports whether ovs-vswitchd waits for flows.
func restoreWaits(t *testing.T, o Options) bool {
	t.Helper()
	argv := append(supervisortest.Program(t, "usr/bin/ovsdb-client"), "dump", "unix:"+o.socket(), "Open_vSwitch", "Open_vSwitch", "other_config")
	out := must.Value(exec.CommandContext(t.Context(), argv[0], argv[1:]...).Output())
	return strings.Contains(string(out), restoreWait)
}

func TestSavedPartsOfADump(t *testing.T) {
	for _, c := range []struct{ name, dump, want string }{
		{"flows without a heading", " table=0, priority=1 actions=drop\n", " table=0, priority=1 actions=drop\n"},
		{"groups", "OFPST_GROUP_DESC reply (OF1.5) (xid=0x2):\n group_id=1,type=all\n", " group_id=1,type=all\n"},
		{"no meters", "OFPST_METER_CONFIG reply (OF1.5) (xid=0x2):\n", ""},
	} {
		if got := entries([]byte(c.dump)); !bytes.Equal(got, []byte(c.want)) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	saved := []byte("meter=1 pktps stats bands=\ntype=drop rate=10\n\nmeter=2 kbps burst bands=\ntype=drop rate=1 burst_size=2\ntype=drop rate=3\n")
	if got, want := meters(saved), []openflow.Meter{
		{ID: 1, Packets: true, Statistics: true, Bands: []openflow.Band{{Rate: 10}}},
		{ID: 2, Bands: []openflow.Band{{Rate: 1, Burst: 2}, {Rate: 3}}},
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("meters: %+v", got)
	}
	got := tunnelOptions([]byte("NXT_TLV_TABLE_REPLY (xid=0x2):\n max option space=256 max fields=64\n allocated option space=4\n\n mapping table:\n" +
		" class  type  length  match field\n ------ ----  ------  --------------\n  0x102  0x80       4  tun_metadata0\n  0x102  0x81      12  tun_metadata1\n"))
	if got != "{class=0x102,type=0x80,len=4}->tun_metadata0,{class=0x102,type=0x81,len=12}->tun_metadata1" {
		t.Errorf("options: %s", got)
	}
}

func TestASocketIsAwaited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "late.sock")
	done := make(chan error, 1)
	go func() { done <- awaitFile(t.Context(), path) }()
	must.Succeed(t, os.WriteFile(filepath.Join(filepath.Dir(path), "another"), nil, 0o600))
	must.Succeed(t, os.WriteFile(path, nil, 0o600))
	must.Succeed(t, <-done)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	must.Succeed(t, awaitFile(ended, filepath.Join(t.TempDir(), "never")))
}
