// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go4.org/netipx"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/bridgestest"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// provided is a node whose only interface eth1 has its addresses and default routes, and the gateway behind it.
type provided struct {
	bridgestest.Switch
	options Options
	config  string // the directory of the database
	gateway netns.NsHandle
	before  kernel.State
}

// testTrial is the deadline of moves in these tests, testGrace the guard's grace.
const (
	testTrial = 3 * time.Second
	testGrace = 500 * time.Millisecond
)

func newProvided(t *testing.T) provided {
	t.Helper()
	gateway := nodetest.Wire(t)
	eth1 := must.Value(netlink.LinkByName("eth1"))
	inside := must.Value(netlink.NewHandleAt(gateway))
	peer := must.Value(inside.LinkByName("peer"))
	must.Succeed(t, inside.AddrAdd(peer, &netlink.Addr{IPNet: netipx.PrefixIPNet(nodetest.Prefixes("2001:db8::2/64")[0]), Flags: syscall.IFA_F_NODAD}))
	for _, r := range []*netlink.Route{
		{LinkIndex: eth1.Attrs().Index, Gw: net.ParseIP("192.0.2.2"), MTU: 1400, Src: net.ParseIP("192.0.2.1")},
		{LinkIndex: eth1.Attrs().Index, Dst: netipx.PrefixIPNet(netip.MustParsePrefix("198.18.0.0/15")), Table: 100, Gw: net.ParseIP("192.0.2.2")},
		{Dst: netipx.PrefixIPNet(netip.MustParsePrefix("10.9.0.0/16")), MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: eth1.Attrs().Index, Gw: net.ParseIP("192.0.2.2")}, {LinkIndex: eth1.Attrs().Index, Gw: net.ParseIP("192.0.2.3"), Hops: 4},
		}},
	} {
		must.Succeed(t, netlink.RouteAdd(r))
	}
	must.Succeed(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: eth1.Attrs().Index, IP: net.ParseIP("192.0.2.77"), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 7}, State: netlink.NUD_PERMANENT}))
	run := supervisortest.RunDir(t)
	return provided{
		Switch: bridgestest.Switch{RunDir: run}, config: filepath.Join(t.TempDir(), "openvswitch"), gateway: gateway, before: must.Value(kernel.Read(eth1)),
		options: Options{Datapath: testDatapath(), Node: "node-1", RunDir: run},
	}
}

// runBridges is `kiln ovs` without ovn-controller. The database is in the directory config.
func runBridges(ctx context.Context, t *testing.T, o Options, config string) error {
	here := bridgestest.Switch{RunDir: o.RunDir}
	file := filepath.Join(config, "conf.db")
	if _, err := os.Stat(file); err != nil {
		must.Succeed(t, os.MkdirAll(config, 0o700))
		supervisortest.CreateSwitchDatabase(t, file)
	}
	_ = errors.Join(os.Remove(here.Socket()), os.Remove(filepath.Join(o.RunDir, database.Integration+".mgmt"))) // of a killed process
	daemon := func(name, program string, args ...string) supervisor.Daemon {
		return supervisor.Daemon{
			Name: name, Argv: slices.Concat(supervisortest.Program(t, program), args, []string{"--pidfile", "--overwrite-pidfile"}), Log: o.Log,
			Env:     []string{"OVS_RUNDIR=" + o.RunDir, "OVS_DBDIR=" + config, "OVS_SYSCONFDIR=" + filepath.Dir(config)},
			Control: func(pid int) string { return filepath.Join(o.RunDir, name+"."+strconv.Itoa(pid)+".ctl") },
		}
	}
	connected := make(chan struct{})
	m := New(o)
	var all sync.WaitGroup
	all.Go(func() { m.Guard(ctx) })
	all.Go(func() { _ = WatchKernel(ctx, m.Changed) })
	all.Go(func() {
		db := here.Connect(ctx)
		if db == nil {
			return
		}
		defer db.Close()
		supervisor.Retry(ctx, func(err error) { o.Log.Error(err, "preparing") }, func() error {
			_, err := database.Root(ctx, db)
			return errors.Join(err, m.restoreUnfinished(ctx, db))
		})
		close(connected)
		m.Run(ctx, db)
	})
	err := supervisor.RunInOrder(ctx,
		&supervisor.Keeper{Daemon: daemon("ovsdb-server", "usr/sbin/ovsdb-server", file, "--remote=punix:"+here.Socket())},
		&supervisor.Keeper{After: connected, Daemon: daemon("ovs-vswitchd", "usr/lib/openvswitch-switch/ovs-vswitchd", "unix:"+here.Socket())})
	all.Wait()
	return errors.Join(err, m.Leave(context.WithoutCancel(ctx)))
}

// Variables of a process of TestProcessOfBridges.
const (
	processOptions = "KILN_TEST_BRIDGES"
	processKill    = "KILN_TEST_KILL"
	// processHalt is the step before which the process waits once, until haltedFile, in Open vSwitch's runtime directory, is removed.
	processHalt      = "KILN_TEST_HALT"
	processPause     = "KILN_TEST_PAUSE"
	processAPIServer = "KILN_TEST_API_SERVER"
	haltedFile       = "halted"
)

// testDatapath is the kernel's if KILN_TEST_DATAPATH says so: it needs the module openvswitch (make underlay-kernel).
func testDatapath() v1alpha1.Datapath {
	if os.Getenv("KILN_TEST_DATAPATH") == "kernel" {
		return v1alpha1.DatapathKernel
	}
	return v1alpha1.DatapathUserspace
}

// TestProcessOfBridges is the process of the other tests. It is the first of a PID namespace, so that its end kills its daemons, as the end of a
// container does.
func TestProcessOfBridges(t *testing.T) {
	directories := strings.Split(os.Getenv(processOptions), ",")
	if len(directories) != 2 {
		t.Skip("only started by other tests") // it is the program that process starts
	}
	o := Options{
		Datapath: testDatapath(), Node: "node-1", RunDir: directories[0], Log: supervisortest.Log(t),
		managers: kernel.Managers{Networkd: "/nonexistent", NetworkManager: "/nonexistent"},
	}
	trialTime, answerTime, firstPause = testTrial, time.Second, 100*time.Millisecond
	if pause, err := time.ParseDuration(os.Getenv(processPause)); err == nil {
		firstPause = pause
	}
	if server, err := netip.ParseAddrPort(os.Getenv(processAPIServer)); err == nil {
		o.APIServer = server
	}
	at, _ := strconv.Atoi(os.Getenv(processKill))
	halt := os.Getenv(processHalt)
	var mu sync.Mutex
	o.step = func(name string) error {
		mu.Lock()
		defer mu.Unlock()
		at--
		fmt.Printf("STEP %s\n", name)
		if at == 0 {
			syscall.Exit(137)
		}
		if halt == name { // until the test has stopped and continued the process
			halt = ""
			halted := filepath.Join(o.RunDir, haltedFile)
			must.Succeed(t, os.WriteFile(halted, []byte(name), 0o600))
			for there := true; there; {
				supervisor.Pause(t.Context(), time.Millisecond)
				_, err := os.Stat(halted)
				there = err == nil
			}
		}
		return nil
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	must.Succeed(t, runBridges(ctx, t, o, directories[1]))
}

// running starts the process until the end of the test, and logs its output if the test fails.
func (p provided) running(t *testing.T) (ended chan struct{}) {
	t.Helper()
	ended, stop := p.process(t, 0)
	t.Cleanup(func() {
		if text := stop(); t.Failed() {
			t.Log(text)
		}
	})
	return ended
}

// process starts the process. It ends before the step with this number; 0 for never. stop returns its output.
func (p provided) process(t *testing.T, kill int, environment ...string) (ended chan struct{}, stop func() string) {
	t.Helper()
	_, ended, stop = p.start(t, append(environment, processKill+"="+strconv.Itoa(kill))...)
	return ended, stop
}

// start is process with further variables. It also returns the process.
func (p provided) start(t *testing.T, environment ...string) (cmd *exec.Cmd, ended chan struct{}, stop func() string) {
	t.Helper()
	// A process of its own, because the test kills it with the daemons that it started.
	cmd = exec.Command(os.Args[0], "-test.run=^TestProcessOfBridges$", "-test.v")
	cmd.Env = append(os.Environ(), processOptions+"="+strings.Join([]string{p.options.RunDir, p.config}, ","), "TMPDIR="+t.TempDir())
	cmd.Env = append(cmd.Env, environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	runtime.LockOSThread() // Pdeathsig is of the thread
	defer runtime.UnlockOSThread()
	must.Succeed(t, cmd.Start())
	ended = make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	return cmd, ended, sync.OnceValue(func() string {
		_ = cmd.Process.Kill()
		<-ended
		return output.String()
	})
}

// database connects to the node's database; nil if the process ends first.

func (p provided) until(t *testing.T, ended chan struct{}, state providerbridge.State) providerbridge.Result {
	t.Helper()
	var result providerbridge.Result
	supervisortest.Eventually(t, "the result is "+string(state), func() error {
		results, _, err := p.Results(t, ended)
		if result = results["net1"]; err == nil && result.State != state {
			err = fmt.Errorf("result: %+v", result)
		}
		return err
	})
	return result
}

// reached pings the node from the gateway, in both families at once.
func (p provided) reached() error {
	six := make(chan error, 1)
	go func() { six <- nodetest.Ping(p.gateway, "2001:db8::1") }()
	return errors.Join(nodetest.Ping(p.gateway, "192.0.2.1"), <-six)
}

// restored compares eth1 with its state before.
func (p provided) restored() error {
	link, err := netlink.LinkByName("eth1")
	if err != nil {
		return err
	}
	after, err := kernel.Read(link)
	if err != nil {
		return err
	}
	permanent := func(n kernel.Neighbour) bool { return !n.Permanent }
	diff := cmp.Diff(p.before, after, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), sortedRoutes,
		cmpopts.IgnoreSliceElements(permanent))
	if diff != "" {
		return errors.New(diff)
	}
	return nil
}

var sortedRoutes = cmpopts.SortSlices(func(a, b kernel.Route) bool { return fmt.Sprint(a, a.Table) < fmt.Sprint(b, b.Table) })

var wanted = map[string]providerbridge.Request{"net1": {
	Interface: "eth1", Attempt: "uid/1", Peers: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, NodeInterface: providerbridge.NodeInterfaceStatic, Turn: true,
}}

// TestAnInterfaceMovesAndReturns moves the only interface of a node, and back.
func TestAnInterfaceMovesAndReturns(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	ended := p.running(t)
	p.Request(t, ended, wanted)
	ready := p.until(t, ended, providerbridge.StateReady)
	if ready.MTU != 1500 || ready.Moved != 2 || !ready.Answers(wanted["net1"]) {
		t.Errorf("result: %+v", ready)
	}
	supervisortest.Eventually(t, "the gateway reaches the node", p.reached)
	bridge := must.Value(kernel.Read(must.Value(netlink.LinkByName("br-net1"))))
	if diff := cmp.Diff(p.before.Routes, bridge.Routes, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), sortedRoutes); diff != "" {
		t.Errorf("routes of the bridge: %s", diff)
	}
	if left := must.Value(kernel.Read(must.Value(netlink.LinkByName("eth1")))); len(left.Addresses)+len(left.Routes) > 0 {
		t.Errorf("eth1 keeps %+v", left)
	}
	_, ids, err := p.Results(t, ended)
	must.Succeed(t, err)
	if ids["ovn-bridge-mappings"] != "net1:br-net1" || ids["kiln-bridge-mappings"] != "net1" {
		t.Errorf("external_ids: %v", ids)
	}

	p.Request(t, ended, nil)
	supervisortest.Eventually(t, "the result is removed", func() error {
		results, ids, err := p.Results(t, ended)
		if err == nil && len(results)+len(ids["ovn-bridge-mappings"])+len(ids["kiln-bridge-mappings"]) > 0 {
			err = fmt.Errorf("external_ids: %v", ids)
		}
		return err
	})
	supervisortest.Eventually(t, "eth1 is as before", p.restored)
	supervisortest.Eventually(t, "the gateway reaches the node", p.reached)
	supervisortest.Eventually(t, "the bridge is removed", gone("br-net1"))
}

// TestAnInterfaceReturnsWhenTheProcessEnds ends `kiln ovs` in the userspace datapath as a kubelet does, without a guard of an agent, and starts it again.
func TestAnInterfaceReturnsWhenTheProcessEnds(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	if p.options.Datapath == v1alpha1.DatapathKernel { // the fault of this test does not exist there
		t.Skip("the kernel's datapath forwards without ovs-vswitchd")
	}
	cmd, ended, stop := p.start(t)
	p.Request(t, ended, wanted)
	p.until(t, ended, providerbridge.StateReady)
	must.Succeed(t, cmd.Process.Signal(syscall.SIGTERM))
	<-ended
	if err := p.restored(); err != nil {
		t.Error(err, stop())
	}
	supervisortest.Eventually(t, "the gateway reaches the node while nothing runs", p.reached)
	if j := must.Value(journal.DirectoryIn(p.options.RunDir).Read("br-net1")); !j.Done || j.Failures != 0 {
		t.Errorf("journal: %+v", j)
	}
	ended = p.running(t)
	supervisortest.Eventually(t, "eth1 moves again", func() error {
		j, err := journal.DirectoryIn(p.options.RunDir).Read("br-net1")
		if err == nil && (j == nil || j.Phase != journal.PhaseMoved) {
			err = fmt.Errorf("journal: %+v", j)
		}
		return err
	})
	p.until(t, ended, providerbridge.StateReady)
	supervisortest.Eventually(t, "the gateway reaches the node", p.reached)
}

// TestRefusalsNameTheirCause requests moves that must not begin.
func TestRefusalsNameTheirCause(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	ended := p.running(t)
	inside := must.Value(netlink.NewHandleAt(p.gateway))
	peer := must.Value(inside.LinkByName("peer"))
	for _, c := range []struct {
		name         string
		provider     string
		request      providerbridge.Request
		before, undo func()
		reason       providerbridge.Reason
		message      string
	}{
		{name: "an interface that does not exist", request: providerbridge.Request{Interface: "eth7"}, reason: providerbridge.ReasonNoInterface, message: "eth1"},
		{name: "the loopback interface", request: providerbridge.Request{Interface: "lo"}, reason: providerbridge.ReasonUnsuitable, message: "not an Ethernet interface"},
		{name: "addresses, without consent", request: providerbridge.Request{Interface: "eth1", Turn: true}, reason: providerbridge.ReasonUnsuitable, message: "192.0.2.1/24"},
		{name: "a value of another version", request: providerbridge.Request{Interface: "eth1", NodeInterface: "Move", Turn: true}, reason: providerbridge.ReasonInvalid, message: "set it to Refuse, Static or All"},
		{name: "addresses, before its turn", request: providerbridge.Request{Interface: "eth1", NodeInterface: providerbridge.NodeInterfaceStatic}, reason: providerbridge.ReasonAwaitingTurn, message: "status.turn"},
		{name: "the name of the bridge of tunnels", provider: providerbridge.Tunnels, request: providerbridge.Request{Interface: "eth1"}, reason: providerbridge.ReasonConflict, message: "br-phy is the name of a bridge"},
		{name: "the name of another bridge", provider: "int", request: providerbridge.Request{Interface: "eth1"}, reason: providerbridge.ReasonConflict, message: "br-int"},
		{
			name: "a gateway that does not answer", request: providerbridge.Request{Interface: "eth1", Attempt: "1", NodeInterface: providerbridge.NodeInterfaceStatic, Turn: true}, reason: providerbridge.ReasonUnreachable, message: "the gateway 192.0.2.2",
			before: func() { silence(inside, peer) }, undo: func() { speak(t, inside, peer) },
		},
		{
			name: "no carrier", request: providerbridge.Request{Interface: "eth1", Attempt: "2"}, reason: providerbridge.ReasonNoCarrier, message: "no carrier",
			before: func() { must.Succeed(t, inside.LinkSetDown(peer)) }, undo: func() { must.Succeed(t, inside.LinkSetUp(peer)); speak(t, inside, peer) },
		},
		{
			name: "an address from DHCP", request: providerbridge.Request{Interface: "eth1", Attempt: "3"}, reason: providerbridge.ReasonManaged, message: "192.0.2.50/24",
			before: func() {
				must.Succeed(t, netlink.AddrAdd(must.Value(netlink.LinkByName("eth1")), &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("192.0.2.50/24")), ValidLft: 600, PreferedLft: 600}))
			},
			undo: func() {
				must.Succeed(t, netlink.AddrDel(must.Value(netlink.LinkByName("eth1")), &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("192.0.2.50/24"))}))
			},
		},
		{
			name: "an address from DHCP, with nodeInterface: All", request: providerbridge.Request{
				Interface: "eth1", Attempt: "4", NodeInterface: providerbridge.NodeInterfaceAll, Turn: true,
			},
			reason: providerbridge.ReasonUnreachable, message: "before the move, no DHCP server renews the address 192.0.2.50",
			before: func() {
				must.Succeed(t, netlink.AddrAdd(must.Value(netlink.LinkByName("eth1")), &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("192.0.2.50/24")), ValidLft: 600, PreferedLft: 600}))
			},
			undo: func() {
				must.Succeed(t, netlink.AddrDel(must.Value(netlink.LinkByName("eth1")), &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("192.0.2.50/24"))}))
			},
		},
		{
			name: "an address of a single host from DHCP", request: providerbridge.Request{Interface: "eth1", Attempt: "8"},
			reason: providerbridge.ReasonManaged, message: "a DHCP client, because the address 2001:db8::9/128",
			before: func() { must.Succeed(t, netlink.AddrAdd(must.Value(netlink.LinkByName("eth1")), single(600))) },
			undo:   func() { must.Succeed(t, netlink.AddrDel(must.Value(netlink.LinkByName("eth1")), single(0))) },
		},
		{
			name: "an address of a single host from DHCP, with nodeInterface: All", request: providerbridge.Request{
				Interface: "eth1", Attempt: "9", NodeInterface: providerbridge.NodeInterfaceAll, Turn: true,
			},
			reason: providerbridge.ReasonUnreachable, message: "before the move, no router advertises the address 2001:db8::9/128 of a DHCP server",
			before: func() { must.Succeed(t, netlink.AddrAdd(must.Value(netlink.LinkByName("eth1")), single(600))) },
			undo:   func() { must.Succeed(t, netlink.AddrDel(must.Value(netlink.LinkByName("eth1")), single(0))) },
		},
		{
			name: "an address of a single host", request: movable("10"), reason: providerbridge.ReasonUnsuitable, message: "the IPv6 address 2001:db8::9/128 next to a wider one",
			before: func() { must.Succeed(t, netlink.AddrAdd(must.Value(netlink.LinkByName("eth1")), single(0))) },
			undo:   func() { must.Succeed(t, netlink.AddrDel(must.Value(netlink.LinkByName("eth1")), single(0))) },
		},
		{
			name: "a default route from router advertisements", request: providerbridge.Request{
				Interface: "eth1", Attempt: "5", NodeInterface: providerbridge.NodeInterfaceAll, Turn: true,
			},
			reason: providerbridge.ReasonUnreachable, message: "before the move, no router advertises the route default via fe80::1",
			before: func() { must.Succeed(t, netlink.RouteAdd(advertised())) },
			undo:   func() { must.Succeed(t, netlink.RouteDel(advertised())) },
		},
		{
			name: "a firewall that names it", request: movable("6"), reason: providerbridge.ReasonNamed, message: "table inet firewall of nftables. Add the same rules for br-net1",
			before: func() {
				nodetest.NFT(t, "add table inet firewall; add chain inet firewall input { type filter hook input priority 0; }; "+
					"add rule inet firewall input iifname { eth1, eth2 } tcp dport 25 drop")
			},
			undo: func() { nodetest.NFT(t, "delete table inet firewall") },
		},
		{
			name: "a routing rule that names it", request: movable("7"), reason: providerbridge.ReasonNamed, message: "ip rule. Add the same rules for br-net1",
			before: func() { must.Succeed(t, netlink.RuleAdd(ruleFor("eth1"))) },
			undo:   func() { must.Succeed(t, netlink.RuleDel(ruleFor("eth1"))) },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.before != nil {
				c.before()
				defer c.undo()
			}
			provider := c.provider
			if provider == "" {
				provider = "net1"
			}
			p.Request(t, ended, map[string]providerbridge.Request{provider: c.request})
			supervisortest.Eventually(t, "the cause is reported", func() error {
				results, _, err := p.Results(t, ended)
				if r := results[provider]; err == nil && (r.State != providerbridge.StateFailed || r.Reason != c.reason || !strings.Contains(r.Message, c.message)) {
					err = fmt.Errorf("result: %+v", r)
				}
				return err
			})
			p.Request(t, ended, nil)
			supervisortest.Eventually(t, "the result is removed", func() error { // before the cause is removed, which would allow the move
				results, _, err := p.Results(t, ended)
				return errors.Join(err, empty(results))
			})
		})
	}
	supervisortest.Eventually(t, "eth1 is as before", p.restored)
}

// movable is the request for a move in a new attempt.
func movable(attempt string) providerbridge.Request {
	return providerbridge.Request{Interface: "eth1", Attempt: attempt, NodeInterface: providerbridge.NodeInterfaceStatic, Turn: true}
}

func ruleFor(name string) *netlink.Rule {
	rule := netlink.NewRule()
	rule.IifName, rule.Table, rule.Priority, rule.Family = name, 100, 900, netlink.FAMILY_V6
	return rule
}

func advertised() *netlink.Route {
	return &netlink.Route{LinkIndex: must.Value(netlink.LinkByName("eth1")).Attrs().Index, Gw: net.ParseIP("fe80::1"), Protocol: syscall.RTPROT_RA, Priority: 2048}
}

// TestAnUnnumberedInterfaceMovesLikeOneWithAddresses requests the interface of a node whose address is on lo, and which has only a default route.
func TestAnUnnumberedInterfaceMovesLikeOneWithAddresses(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	eth1, lo := must.Value(netlink.LinkByName("eth1")), must.Value(netlink.LinkByName("lo"))
	inside := must.Value(netlink.NewHandleAt(p.gateway))
	local := netip.MustParseAddr("fe80::1")
	must.Succeed(t, inside.AddrAdd(must.Value(inside.LinkByName("peer")), &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.PrefixFrom(local, 64)), Flags: syscall.IFA_F_NODAD}))
	must.Succeed(t, netlink.LinkSetDown(eth1)) // removes routes
	for _, a := range must.Value(netlink.AddrList(eth1, netlink.FAMILY_ALL)) {
		must.Succeed(t, netlink.AddrDel(eth1, &a))
	}
	must.Succeed(t, errors.Join(netlink.LinkSetUp(eth1), kernel.AddAddress(lo, netip.MustParsePrefix("192.0.2.1/32"))))
	via := &netlink.Via{AddrFamily: netlink.FAMILY_V6, Addr: local.AsSlice()}
	must.Succeed(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth1.Attrs().Index, Dst: netipx.PrefixIPNet(netip.MustParsePrefix("0.0.0.0/0")), Via: via}))
	p.before = must.Value(kernel.Read(eth1))
	ended := p.running(t)
	request := providerbridge.Request{Interface: "eth1", Attempt: "uid/1"}
	refused := func(reason providerbridge.Reason) {
		t.Helper()
		p.Request(t, ended, map[string]providerbridge.Request{"net1": request})
		supervisortest.Eventually(t, "the result is "+string(reason), func() error {
			results, _, err := p.Results(t, ended)
			if r := results["net1"]; err == nil && (r.Reason != reason || !strings.Contains(r.Message, "the route default via fe80::1")) {
				err = fmt.Errorf("result: %+v", r)
			}
			return err
		})
	}
	refused(providerbridge.ReasonUnsuitable)
	request.NodeInterface = providerbridge.NodeInterfaceStatic
	refused(providerbridge.ReasonAwaitingTurn)
	request.Turn = true
	p.Request(t, ended, map[string]providerbridge.Request{"net1": request})
	p.until(t, ended, providerbridge.StateReady)
	j := must.Value(journal.DirectoryIn(p.options.RunDir).Read("br-net1"))
	if j.Deadline == 0 || len(j.Targets) != 1 || j.Targets[0].Address != local {
		t.Errorf("there was no trial: %+v", j)
	}
	request.NodeInterface = ""
	refused(providerbridge.ReasonUnsuitable)
	supervisortest.Eventually(t, "eth1 is as before", p.restored)
}

// TestAddressesOfANodeAreNotMovedWithoutConsent begins a move of an interface with an address, as a node does.
func TestAddressesOfANodeAreNotMovedWithoutConsent(t *testing.T) {
	m := New(Options{RunDir: t.TempDir(), managers: kernel.Managers{Networkd: "/nonexistent", NetworkManager: "/nonexistent"}})
	before := kernel.State{Addresses: []kernel.Address{{Prefix: netip.MustParsePrefix("192.0.2.1/24")}}}
	link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "eth1", Index: 4711}}
	n := network{provider: "net1", bridge: "br-net1", request: &providerbridge.Request{Interface: "eth1", Turn: true}}
	r := m.begin(t.Context(), &candidate{network: n, link: link, journal: journal.Journal{Uplink: "eth1", Before: before}})
	if r.State != providerbridge.StateFailed || r.Reason != providerbridge.ReasonUnsuitable || !strings.Contains(r.Message, "192.0.2.1/24") {
		t.Errorf("result: %+v", r)
	}
}

// TestPausesGrow reads the pauses after failures of a move.
func TestAddressesAreFoundWhileAnInterfaceMoves(t *testing.T) {
	before := kernel.State{Addresses: kernel.Plain(nodetest.Prefixes("192.0.2.1/24"))}
	for _, c := range []struct {
		name    string
		journal *journal.Journal
		want    []string
	}{
		{"no journal", nil, []string{"eth1"}},
		{"a trial", &journal.Journal{Uplink: "eth1", Phase: journal.PhaseTrial, Before: before}, []string{"br-net1", "eth1"}},
		{"a move", &journal.Journal{Uplink: "eth1", Phase: journal.PhaseMoved, Before: before}, []string{"br-net1", "eth1"}},
		{"a move without addresses", &journal.Journal{Uplink: "eth1", Phase: journal.PhaseMoved}, []string{"eth1"}},
		{"a move of another interface", &journal.Journal{Uplink: "eth2", Phase: journal.PhaseMoved, Before: before}, []string{"eth1"}},
		{"a return", &journal.Journal{Uplink: "eth1", Phase: journal.PhaseReturned, Before: before}, []string{"eth1", "br-net1"}},
		{"after a return", &journal.Journal{Uplink: "eth1", Phase: journal.PhaseReturned, Done: true, Before: before}, []string{"eth1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &Tunnels{directory: journal.Directory{Path: t.TempDir()}}
			if c.journal != nil {
				c.journal.Bridge = "br-net1"
				must.Succeed(t, p.directory.Begin(t.Context(), *c.journal))
			}
			if diff := cmp.Diff(c.want, p.holders("eth1")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPausesGrow(t *testing.T) {
	for failures, want := range []time.Duration{0, time.Minute, 4 * time.Minute, 16 * time.Minute, 64 * time.Minute, 256 * time.Minute, 6 * time.Hour, 6 * time.Hour} {
		if got := pauseAfter(failures); got != want {
			t.Errorf("after %d failures: %s, want %s", failures, got, want)
		}
	}
	ahead := journal.Journal{Failures: 1, Undone: time.Now().Add(time.Hour)} // the clock of the node was set back
	if left := pause(&ahead); left > time.Minute {
		t.Errorf("the pause is %s after the clock was set back", left)
	}
}

// TestAnInterfaceStaysWithItsNetwork requests the interface of net1 for a network whose name comes first.
func TestAnInterfaceStaysWithItsNetwork(t *testing.T) {
	p := Mover{directory: journal.DirectoryIn(t.TempDir())}
	must.Succeed(t, p.directory.Begin(t.Context(), journal.Journal{Bridge: "br-net1", Uplink: "eth1", Phase: journal.PhaseMoved}))
	requests := map[string]providerbridge.Request{"a": {Interface: "eth1"}, "b": {Interface: "eth2"}, "net1": {Interface: "eth1"}}
	if users := p.owners(requests); len(users) != 1 || users["eth1"] != "net1" {
		t.Errorf("users: %v", users)
	}
	requests["net1"] = providerbridge.Request{Interface: "eth3"}
	if users := p.owners(requests); len(users) != 0 {
		t.Errorf("users after net1 has another interface: %v", users)
	}
	must.Succeed(t, os.WriteFile(filepath.Join(p.directory.Path, "br-b.json"), []byte("{"), 0o600))
	if users := p.owners(requests); len(users) != 1 || users["eth2"] != "b" {
		t.Errorf("users while the journal of b is damaged: %v", users)
	}
}

// TestADamagedJournalDoesNotStopTheSwitch starts the process again after the journal of a bridge was damaged.
func TestADamagedJournalDoesNotStopTheSwitch(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	ended, stop := p.process(t, 0)
	p.Request(t, ended, wanted)
	p.until(t, ended, providerbridge.StateReady)
	stop()
	must.Succeed(t, os.WriteFile(filepath.Join(journal.DirectoryIn(p.options.RunDir).Path, "br-net1.json"), []byte("{"), 0o600))
	ended = p.running(t)
	result := p.until(t, ended, providerbridge.StateFailed) // after ovs-vswitchd may start
	if !strings.Contains(result.Message, "the journal of bridge br-net1") {
		t.Errorf("result: %+v", result)
	}
}

// TestAStoredTurnIsForgotten has a turn of the time before `kiln ovs` started.
func TestAStoredTurnIsForgotten(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	ended := p.running(t)
	requests := map[string]providerbridge.Request{
		"net1": {Interface: "eth8", Turn: true, Attempt: "1", Peers: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}, "net2": {Interface: "eth9", Attempt: "1"},
	}
	p.Request(t, ended, requests)
	p.until(t, ended, providerbridge.StateFailed)
	db := p.Database(t, ended)
	defer db.Close()
	for range 2 {
		must.Succeed(t, forgetTurns(t.Context(), db))
	}
	without := requests["net1"]
	without.Turn = false
	requests["net1"] = without
	supervisortest.Eventually(t, "the turn is gone from the database", func() error {
		row, err := database.Root(t.Context(), db)
		if err != nil {
			return err
		}
		got, _ := providerbridge.Requests(row.ExternalIDs)
		if diff := cmp.Diff(requests, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// silence removes the gateway's addresses, and speak adds them again.
func silence(h *netlink.Handle, link netlink.Link) {
	for _, p := range nodetest.Prefixes("192.0.2.2/24", "2001:db8::2/64") {
		_ = h.AddrDel(link, &netlink.Addr{IPNet: netipx.PrefixIPNet(p)})
	}
}

func speak(t *testing.T, h *netlink.Handle, link netlink.Link) {
	t.Helper()
	for _, p := range nodetest.Prefixes("192.0.2.2/24", "2001:db8::2/64") {
		must.Succeed(t, h.AddrReplace(link, &netlink.Addr{IPNet: netipx.PrefixIPNet(p), Flags: syscall.IFA_F_NODAD}))
	}
}

// TestAMoveThatCutsTheNodeOffIsUndone lets the gateway answer until the move.
func TestAMoveThatCutsTheNodeOffIsUndone(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	ended := p.running(t)
	inside := must.Value(netlink.NewHandleAt(p.gateway))
	peer := must.Value(inside.LinkByName("peer"))
	p.Request(t, ended, wanted)
	moving := make(chan struct{})
	go func() { // as soon as the move has begun, nothing answers
		defer close(moving)
		for directory := journal.DirectoryIn(p.options.RunDir); t.Context().Err() == nil; {
			if j, err := directory.Read("br-net1"); err == nil && j != nil && j.Phase == journal.PhaseTrial {
				silence(inside, peer)
				return
			}
			supervisor.Pause(t.Context(), 5*time.Millisecond)
		}
	}()
	<-moving
	result := p.until(t, ended, providerbridge.StateFailed)
	if result.Reason != providerbridge.ReasonRolledBack || !strings.Contains(result.Message, "the gateway 192.0.2.2") || !strings.Contains(result.Message, "2001:db8::2") {
		t.Errorf("result: %+v", result)
	}
	speak(t, inside, peer)
	supervisortest.Eventually(t, "the gateway reaches the node", p.reached)
	supervisortest.Eventually(t, "eth1 is as before", p.restored)
	p.until(t, ended, providerbridge.StateReady) // it is tried again
	supervisortest.Eventually(t, "the gateway reaches the node", p.reached)
}

// allKills selects all kill points, or with a number those from there on; make underlay-kills sets it.
const allKills = "KILN_UNDERLAY_KILLS"

// quickKills are the points of the unit suite: with the interface attached, and with addresses in both places.
var quickKills = []int{5, 20}

// minKills and maxKills bound the steps of a move and of its removal.
const (
	minKills = 20
	maxKills = 100
)

// TestANodeIsReachedWhereverTheProcessEnds ends `kiln ovs` before each step of a move and of a removal. Then either `kiln ovs` starts again, or
// only the agent's guard runs. The node must be reached at its address in both cases.
func TestANodeIsReachedWhereverTheProcessEnds(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	if os.Getenv(allKills) == "" {
		for _, kill := range quickKills {
			t.Run(fmt.Sprintf("step %d", kill), func(t *testing.T) {
				if p.killed(t, kill) {
					t.Error("the process did not end before this step")
				}
			})
		}
		return
	}
	first, _ := strconv.Atoi(os.Getenv(allKills))
	for kill := max(first, 1); kill <= maxKills; kill++ {
		var last bool
		t.Run(fmt.Sprintf("step %d", kill), func(t *testing.T) { last = p.killed(t, kill) })
		if last || t.Failed() {
			return
		}
	}
	t.Errorf("a move and its removal have more than %d steps", maxKills)
}

// killPoints returns the number of steps in the output of a process.
func killPoints(output string) int { return strings.Count(output, "STEP ") }

// complete checks that a process has been asked before each step of a move and of a removal.
func complete(t *testing.T, output string) {
	t.Helper()
	if n := killPoints(output); n < minKills {
		t.Errorf("a move and its removal have %d steps, want at least %d", n, minKills)
	}
}

// killed runs a move that ends before a step. It reports whether the move and the removal have fewer steps.
func (p provided) killed(t *testing.T, kill int) (last bool) {
	cmd, ended, stop := p.start(t, processKill+"="+strconv.Itoa(kill))
	p.Request(t, ended, wanted)
	done := make(chan struct{})
	go func() { // a removal as soon as the move is complete
		defer close(done)
		for t.Context().Err() == nil {
			results, _, err := p.Results(t, ended)
			if err != nil {
				return
			}
			if results["net1"].State == providerbridge.StateReady {
				break
			}
			supervisor.Pause(t.Context(), 20*time.Millisecond)
		}
		if db := p.Database(t, ended); db != nil {
			defer db.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_ = database.SetIDs(ctx, db, []string{providerbridge.RequestKey("net1")}, nil)
		}
		for t.Context().Err() == nil {
			results, _, err := p.Results(t, ended)
			if err != nil {
				return
			}
			if _, found := results["net1"]; !found {
				last = true
				return
			}
			supervisor.Pause(t.Context(), 20*time.Millisecond)
		}
	}()
	select {
	case <-ended:
	case <-done:
	}
	<-done
	steps := stop()
	defer func() {
		if t.Failed() {
			t.Log(steps)
		}
	}()
	if last {
		complete(t, steps)
		return true
	}
	if n, code := killPoints(steps), cmd.ProcessState.ExitCode(); n != kill || code != 137 {
		t.Fatalf("the process ended before step %d with exit code %d, want step %d and 137", n, code, kill)
	}
	t.Logf("ended before: %s", steps[strings.LastIndex(steps, "STEP ")+5:])

	// The agent alone.
	ctx, cancel := context.WithCancel(t.Context())
	guard := &journal.Guard{Directory: journal.DirectoryIn(p.options.RunDir), Log: supervisortest.Log(t), Grace: testGrace}
	guarded := make(chan error, 1)
	go func() { guarded <- guard.Run(ctx) }()
	supervisortest.Eventually(t, "with the agent alone, the gateway reaches the node", p.reached)
	supervisortest.Eventually(t, "with the agent alone, eth1 is as before", p.restored)
	cancel()
	must.Succeed(t, <-guarded)

	// `kiln ovs` again, with the request and without.
	ended, stopAgain := p.process(t, 0)
	defer func() {
		if text := stopAgain(); t.Failed() {
			t.Log(text)
		}
	}()
	p.Request(t, ended, wanted)
	p.until(t, ended, providerbridge.StateReady)
	supervisortest.Eventually(t, "after a restart, the gateway reaches the node", p.reached)
	p.Request(t, ended, nil)
	supervisortest.Eventually(t, "after the removal, eth1 is as before", func() error {
		if results, _, err := p.Results(t, ended); err != nil || len(results) > 0 {
			return errors.Join(fmt.Errorf("results: %v", results), err)
		}
		return p.restored()
	})
	supervisortest.Eventually(t, "after the removal, the gateway reaches the node", p.reached)
	complete(t, stopAgain())
	return false
}
