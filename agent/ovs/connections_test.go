// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// aSwitch is an ovs-vswitchd with the dummy datapath and br-int, with the ports outside and inside.
type aSwitch struct {
	*testing.T

	dir string
}

func newSwitch(t *testing.T) aSwitch {
	t.Helper()
	s := aSwitch{t, supervisortest.RunDir(t)}
	supervisortest.CreateSwitchDatabase(t, filepath.Join(s.dir, "conf.db"))
	start := func(name, program string, args ...string) { // a real Open vSwitch: only its datapath shows which connections end
		line := append(supervisortest.Program(t, program), args...)
		command := exec.Command(line[0], line[1:]...)
		command.Env = append(os.Environ(), "OVS_RUNDIR="+s.dir, "OVS_LOGDIR="+s.dir, "OVS_DBDIR="+s.dir)
		daemontest.Start(t, name, filepath.Join(s.dir, name+".log"), command)
	}
	socket := filepath.Join(s.dir, "db.sock")
	start("ovsdb-server", "usr/sbin/ovsdb-server", filepath.Join(s.dir, "conf.db"), "--remote=punix:"+socket, "--no-chdir", "--unixctl="+filepath.Join(s.dir, "db.ctl"))
	eventually.Wait{For: "ovsdb-server listens"}.Succeeds(t, func() error { _, err := os.Stat(socket); return err })
	start("ovs-vswitchd", "usr/lib/openvswitch-switch/ovs-vswitchd", "unix:"+socket, "--no-chdir", "--pidfile", "--enable-dummy=override", "--disable-system")
	s.run("usr/bin/ovs-vsctl", "--db=unix:"+socket, "--timeout=60", "add-br", IntegrationBridge, "--", "set", "bridge", IntegrationBridge, "datapath_type=dummy",
		"fail_mode=secure", "--", "add-port", IntegrationBridge, "outside", "--", "set", "interface", "outside", "type=dummy", "ofport_request=1",
		"--", "add-port", IntegrationBridge, "inside", "--", "set", "interface", "inside", "type=dummy", "ofport_request=2")
	return s
}

// run runs a program and returns its output.
func (s aSwitch) run(program string, args ...string) string {
	s.Helper()
	line := append(supervisortest.Program(s.T, program), args...)
	command := exec.Command(line[0], line[1:]...)
	command.Env = append(os.Environ(), "OVS_RUNDIR="+s.dir)
	out, err := command.CombinedOutput()
	if err != nil {
		s.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

func (s aSwitch) flows(flows ...string) {
	s.Helper()
	bridge := "unix:" + filepath.Join(s.dir, IntegrationBridge+".mgmt")
	s.run("usr/bin/ovs-ofctl", "del-flows", bridge)
	for _, flow := range flows {
		s.run("usr/bin/ovs-ofctl", "-O", "OpenFlow13", "add-flow", bridge, flow)
	}
}

func (s aSwitch) control(args ...string) string {
	s.Helper()
	pid := strings.TrimSpace(string(must.Value(os.ReadFile(filepath.Join(s.dir, "ovs-vswitchd.pid")))))
	return s.run("usr/bin/ovs-appctl", append([]string{"--timeout=60", "-t", filepath.Join(s.dir, "ovs-vswitchd."+pid+".ctl")}, args...)...)
}

// receive makes a port receive a UDP packet.
func (s aSwitch) receive(port, number, family, source, destination, sourcePort, destinationPort string) {
	s.Helper()
	ethernet := map[string]string{"ipv4": "0x0800", "ipv6": "0x86dd"}[family]
	rest := map[string]string{"ipv4": ",tos=0,ttl=64,frag=no", "ipv6": ",label=0,tclass=0,hlimit=64,frag=no"}[family]
	s.control("netdev-dummy/receive", port, "in_port("+number+"),eth(src=50:54:00:00:00:09,dst=50:54:00:00:00:0a),eth_type("+ethernet+"),"+family+"(src="+source+",dst="+destination+
		",proto=17"+rest+"),udp(src="+sourcePort+",dst="+destinationPort+")")
}

// tracked waits until as many connections with a text are tracked.
func (s aSwitch) tracked(text string, want int) {
	s.Helper()
	eventually.Until(s.T, func() string {
		if out := s.control("dpctl/dump-conntrack"); strings.Count(out, text) != want {
			return "tracked are:\n" + out
		}
		return ""
	})
}

func flushOf(id, address, internal string) v1.ConnectionFlush {
	return v1.ConnectionFlush{ID: id, Address: netip.MustParseAddr(address), Internal: netip.MustParsePrefix(internal)}
}

func TestConnectionsOfAFormerTranslationEnd(t *testing.T) {
	t.Parallel()
	s := newSwitch(t)
	floating, six := flushOf("f", "192.0.2.9", "10.50.0.5/32"), flushOf("g", "2001:db8::9", "fd00:50::5/128")
	port := flushOf("p", "192.0.2.10", "10.50.0.6/32")
	port.Protocol, port.Port = "udp", 53
	sources := flushOf("s", "192.0.2.11", "10.50.0.0/24")
	sources.Source = true
	balanced := flushOf("b", "192.0.2.12", "10.50.0.8/32")
	balanced.Protocol, balanced.Port = "udp", 53
	every := flushOf("e", "192.0.2.13", "0.0.0.0/0")
	every.Source = true
	all := []v1.ConnectionFlush{floating, six, port, sources, balanced, every}
	flows := map[string][]string{
		"f": {"priority=9,in_port=1,ip,nw_dst=192.0.2.9,actions=ct(commit,zone=5,nat(dst=10.50.0.5),table=1)",
			"priority=9,in_port=2,ip,nw_src=10.50.0.5,actions=ct(commit,zone=5,nat(src=192.0.2.9),table=2)"},
		"g": {"priority=9,in_port=1,ipv6,ipv6_dst=2001:db8::9,actions=ct(commit,zone=5,nat(dst=fd00:50::5),table=1)"},
		"p": {"priority=9,in_port=1,udp,nw_dst=192.0.2.10,tp_dst=53,actions=ct(commit,zone=5,nat(dst=10.50.0.6),table=1)"},
		"s": {"priority=8,in_port=2,ip,nw_src=10.50.0.0/24,actions=ct(commit,zone=6,nat(src=192.0.2.11),table=2)"},
		"b": {"priority=9,in_port=1,udp,nw_dst=192.0.2.12,tp_dst=53,actions=group:8"},
		"e": {"priority=3,in_port=2,ip,actions=ct(commit,zone=6,nat(src=192.0.2.13),table=2)"},
	}
	for _, group := range []string{"8,type=select,bucket=actions=ct(commit,zone=5,nat(dst=10.50.0.8),table=1)", "9,type=select,bucket=actions=ct(commit,zone=5,nat(dst=10.50.0.9),table=1)"} {
		s.run("usr/bin/ovs-ofctl", "-O", "OpenFlow13", "add-group", "unix:"+filepath.Join(s.dir, IntegrationBridge+".mgmt"), "group_id="+group)
	}
	always := []string{"priority=9,in_port=2,ip,nw_src=10.50.0.9,actions=ct(commit,zone=6,nat(src=192.0.2.11),table=2)", "table=1,actions=2", "table=2,actions=1", "priority=5,in_port=1,ip,nw_dst=192.0.2.10,actions=2", "priority=1,ip,nw_dst=192.0.2.9,actions=drop",
		"priority=1,ip,nw_src=10.50.0.5,actions=drop", "priority=6,udp,nw_dst=192.0.2.10,tp_dst=53,actions=drop", "priority=6,udp,nw_dst=192.0.2.12,tp_dst=53,actions=group:9",
		"priority=6,in_port=2,ip,nw_src=10.50.0.8,actions=ct(commit,zone=6,nat(src=192.0.2.13),table=2)", "priority=7,in_port=1,udp,nw_dst=192.0.2.10,tp_dst=54,actions=ct(commit,zone=5,nat(dst=10.50.0.6),table=1)"}
	set := func(ids ...string) {
		t.Helper()
		some := slices.Clone(always)
		for _, id := range ids {
			some = append(some, flows[id]...)
		}
		s.flows(some...)
	}
	connections := Connections{Directory: s.dir}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	have := func(want ...string) {
		t.Helper()
		found, err := connections.Translated(ctx, all)
		must.Succeed(t, err)
		var ids []string
		for _, one := range found {
			ids = append(ids, one.ID)
		}
		if !slices.Equal(ids, want) {
			t.Errorf("the bridge has flows of %v, want %v", ids, want)
		}
	}
	have()
	for _, id := range []string{"f", "g", "p", "s", "b", "e"} {
		set(id)
		have(id)
	}
	s.flows(flows["f"][1]) // from the pod only
	have("f")
	set("f", "g", "p", "s")
	have("f", "g", "p", "s")

	s.receive("outside", "1", "ipv4", "198.51.100.7", "192.0.2.9", "1000", "9")
	s.receive("inside", "2", "ipv4", "10.50.0.5", "198.51.100.7", "1001", "9")
	s.receive("outside", "1", "ipv6", "2001:db8:7::7", "2001:db8::9", "1002", "9")
	s.receive("outside", "1", "ipv4", "198.51.100.7", "192.0.2.10", "1003", "53")
	s.receive("outside", "1", "ipv4", "198.51.100.7", "192.0.2.10", "1004", "54")
	s.receive("inside", "2", "ipv4", "10.50.0.7", "198.51.100.7", "1005", "9")
	s.tracked("udp,", 6)
	for _, c := range []struct {
		flush v1.ConnectionFlush
		ends  []string
		left  int
	}{
		{floating, []string{"sport=1000,", "sport=1001,"}, 4}, {six, []string{"sport=1002,"}, 3}, {port, []string{"sport=1003,"}, 2}, {sources, []string{"sport=1005,"}, 1},
	} {
		if done, err := connections.Flush(ctx, []v1.ConnectionFlush{c.flush}); err != nil || len(done) != 1 {
			t.Errorf("ended are the connections of %v: %v", done, err)
		}
		for _, text := range c.ends {
			s.tracked(text, 0)
		}
		s.tracked("udp,", c.left)
	}
	s.tracked("dport=54", 1) // another port of the address
}

func TestConnectionsOfASwitchThatDoesNotRun(t *testing.T) {
	t.Parallel()
	c := Connections{Directory: t.TempDir()}
	all := []v1.ConnectionFlush{flushOf("f", "192.0.2.9", "10.50.0.5/32")}
	if left, err := c.Translated(t.Context(), all); err == nil || len(left) != 1 {
		t.Errorf("there are flows of %v: %v", left, err)
	}
	if done, err := c.Flush(t.Context(), all); err == nil || len(done) != 0 {
		t.Error("connections were deleted")
	}
}

// Connections of a port to its next pod stay.
func TestConnectionsToTheNextPodOfAPortStay(t *testing.T) {
	t.Parallel()
	s := newSwitch(t)
	s.flows("in_port=1,udp,nw_dst=192.0.2.10,tp_dst=53,actions=ct(commit,zone=5,nat(dst=10.50.0.6),table=1)", "table=1,actions=2")
	s.receive("outside", "1", "ipv4", "198.51.100.7", "192.0.2.10", "1001", "53")
	s.tracked("udp,", 1)
	s.flows("in_port=1,udp,nw_dst=192.0.2.10,tp_dst=53,actions=ct(commit,zone=5,nat(dst=10.50.0.7),table=1)", "table=1,actions=2")
	s.receive("outside", "1", "ipv4", "198.51.100.7", "192.0.2.10", "1002", "53")
	s.tracked("udp,", 2)
	former := flushOf("p", "192.0.2.10", "10.50.0.6/32")
	former.Protocol, former.Port = "udp", 53
	connections := Connections{Directory: s.dir}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	left, err := connections.Translated(ctx, []v1.ConnectionFlush{former})
	must.Succeed(t, err)
	if len(left) != 0 {
		t.Errorf("the bridge has flows of %v", left)
	}
	_, err = connections.Flush(ctx, []v1.ConnectionFlush{former})
	must.Succeed(t, err)
	s.tracked("sport=1001,", 0)
	s.tracked("sport=1002,", 1)
}

// The dump of the datapath that ends next can have begun before the flows were deleted.
func TestConnectionsEndAfterAWholeDump(t *testing.T) {
	t.Parallel()
	dir := supervisortest.RunDir(t)
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "ovs-vswitchd.pid"), []byte("7\n"), 0o600))
	listener := must.Value(net.Listen("unix", filepath.Join(dir, "ovs-vswitchd.7.ctl")))
	t.Cleanup(func() { must.Succeed(t, listener.Close()) })
	calls := make(chan string, 10)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			var request struct {
				ID     any    `json:"id"`
				Method string `json:"method"`
			}
			if json.NewDecoder(conn).Decode(&request) == nil {
				calls <- request.Method
				_ = json.NewEncoder(conn).Encode(map[string]any{"id": request.ID, "result": "", "error": nil})
			}
			_ = conn.Close()
		}
	}()
	_, err := Connections{Directory: dir}.Flush(t.Context(), []v1.ConnectionFlush{flushOf("f", "192.0.2.9", "10.50.0.0/24")})
	must.Succeed(t, err)
	var got []string
	for len(calls) > 0 {
		got = append(got, <-calls)
	}
	if !slices.Equal(got, []string{"revalidator/wait", "revalidator/wait", "dpctl/flush-conntrack"}) {
		t.Errorf("the calls are %q", got)
	}
}
