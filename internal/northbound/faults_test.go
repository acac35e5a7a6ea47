// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/eventually"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// step is one Apply of a script.
type step struct {
	owner desired.Owner
	rows  []desired.Row
}

// script creates, changes and deletes rows of every shape.
func script() []step {
	return []step{
		{vpc("v"), vpcRows("v")},
		{subnet("s"), subnetRows("s")},
		{subnet("s2"), subnetRows("s2")},
		{node("n"), nodeRows("n")},
		{policy("p"), policyRows("p")},
		{service("svc"), serviceRows("v")},
		{pod("a"), podRows("a", "s", "n")},
		{pod("b"), podWithAddress("b", "s", "10.16.0.3", "p")},
		{pod("a"), podRows("a", "s2")},
		{pod("b"), nil},
		{pod("c"), podWithAddress("c", "s2", "10.16.0.4", "p")},
		{service("svc"), nil},
	}
}

func (e *engine) script(steps []step) {
	e.t.Helper()
	for _, s := range steps {
		e.apply(s.owner, s.rows)
	}
}

// outcome is the database without NB_Global, which has the term and the barrier.
func outcome(server *nbtest.Server) map[string]map[string]nbtest.Row {
	dump := server.Dump()
	delete(dump, "NB_Global")
	return dump
}

func undisturbed(t *testing.T) map[string]map[string]nbtest.Row {
	t.Helper()
	server := nbtest.Start(t)
	lead(t, server.Endpoint()).script(script())
	return outcome(server)
}

func TestACrashAfterAnyCommitIsRepairedByApplyingAgain(t *testing.T) {
	want := undisturbed(t)
	for n := range len(script()) {
		server := nbtest.Start(t)
		first := lead(t, server.Endpoint())
		first.script(script()[:n])
		first.stop()
		// The successor knows only the current state: the last rows of each owner.
		last := map[desired.Owner][]desired.Row{}
		for _, s := range script() {
			last[s.owner] = s.rows
		}
		second := lead(t, server.Endpoint())
		for _, s := range script() {
			second.apply(s.owner, last[s.owner])
		}
		if diff := cmp.Diff(want, outcome(server)); diff != "" {
			t.Errorf("after a crash behind commit %d: %s", n, diff)
		}
	}
}

func TestLostRequestsAndRepliesAreRepaired(t *testing.T) {
	want := undisturbed(t)
	for fault, name := range map[nbtest.Fault]string{nbtest.RequestLost: "request", nbtest.ReplyLost: "reply"} {
		t.Run(name, func(t *testing.T) {
			for n := 1; n <= len(script()); n++ {
				server := nbtest.Start(t)
				proxy := server.Proxy()
				e := lead(t, proxy.Endpoint())
				proxy.Fail(n, fault)
				proxy.Fail(n+1, fault) // the barrier fails, too
				e.script(script())
				if diff := cmp.Diff(want, outcome(server)); diff != "" {
					t.Errorf("%s of transaction %d lost: %s", name, n, diff)
				}
				if proxy.Transactions() < len(script())+2 { // the lost ones, and a successful barrier
					t.Error("no transaction was repeated behind a barrier")
				}
				e.stop()
			}
		})
	}
}

func TestAnInFlightBatchSurvivesLostReplies(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	for _, nth := range []int{1, 2, 4, 6} {
		proxy.Fail(nth, nbtest.ReplyLost)
	}
	names := podNames(300)
	e.applyAll(names, func(name string) []desired.Row { return podRows(name, "s", "n") })
	if got := len(server.Rows("Logical_Switch_Port")); got != len(names) {
		t.Errorf("%d ports, want %d", got, len(names))
	}
	if got := server.Rows("Port_Group")[groupRef("n").UUID()].Strings("ports"); len(got) != len(names) {
		t.Errorf("%d ports in the group, want %d", len(got), len(names))
	}
}

func TestAPoisonedOwnerFailsAlone(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	// A duplicate name: the server detects this violation of the schema only at commit, for the whole batch.
	e.apply(pod("first"), podRows("first", "s"))
	poison := podRows("poison", "s")
	poison[0].Model.(*nb.LogicalSwitchPort).Name = "first.ns"
	// An invalid value, which the server detects at that operation.
	poison2 := []desired.Row{{
		Key: "acl", Parent: new(desired.SwitchACLs(switchRef("s"))),
		Model: &nb.ACL{Action: "no-such-action", Direction: "from-lport", Match: "1", Priority: 1},
	}}

	sent := proxy.Transactions()
	names := podNames(100)
	var mu sync.Mutex
	poisoned := map[string]error{}
	var running sync.WaitGroup
	for _, bad := range []step{{pod("poison"), poison}, {pod("poison2"), poison2}} {
		running.Go(func() {
			err := e.try(bad.owner, bad.rows)
			mu.Lock()
			defer mu.Unlock()
			poisoned[bad.owner.Name] = err
		})
	}
	e.applyAll(names, func(name string) []desired.Row { return podRows(name, "s") })
	running.Wait()
	for name, reason := range map[string]string{"poison": "first.ns", "poison2": "no-such-action"} {
		if err := poisoned[name]; err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: got %v, want an error about %s", name, err, reason)
		}
	}
	if got := len(server.Rows("Logical_Switch_Port")); got != len(names)+1 {
		t.Errorf("%d ports, want %d", got, len(names)+1)
	}
	if used := proxy.Transactions() - sent; used > 40 {
		t.Errorf("%d transactions for two bad owners among a hundred", used)
	}
	e.apply(pod("poison"), podRows("poison", "s")) // the owner recovers
}

// If the server drops the connection because of one owner, the other owners continue. The owner is reported, with a back-off
// before its retry.
func TestAnOwnerThatEndsTheConnectionFailsAlone(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	proxy.Poison("poisonous")
	sent := proxy.Transactions()
	poison := podRows("poisonous", "s")
	var guilty error
	var running sync.WaitGroup
	running.Go(func() { guilty = e.try(pod("guilty"), poison) })
	names := podNames(100)
	e.applyAll(names, func(name string) []desired.Row { return podRows(name, "s") })
	running.Wait()
	if !errors.Is(guilty, northbound.ErrNoAnswer) {
		t.Errorf("got %v, want ErrNoAnswer", guilty)
	}
	if got := len(server.Rows("Logical_Switch_Port")); got != len(names) {
		t.Errorf("%d ports, want %d", got, len(names))
	}
	if used := proxy.Transactions() - sent; used > 50 {
		t.Errorf("%d transactions for one bad owner among a hundred", used)
	}
	refused := e.Refused()
	if len(refused) != 1 || refused[0].Owner != pod("guilty") || refused[0].Since.IsZero() {
		t.Errorf("refused: %v, want the guilty owner", refused)
	}

	// During the back-off, Apply returns without a transaction and closes no connection of other owners.
	sent = proxy.Transactions()
	for range 20 {
		if err := e.try(pod("guilty"), poison); !errors.Is(err, northbound.ErrNoAnswer) {
			t.Errorf("got %v, want ErrNoAnswer", err)
		}
	}
	if used := proxy.Transactions() - sent; used > 8 { // each attempt: two losses and their barriers
		t.Errorf("%d transactions while the owner rests", used)
	}
	proxy.Poison("")
	eventually.Wait{For: "the owner that is well again has its rows", Pause: 10 * time.Millisecond}.Holds(t, func() bool {
		return e.try(pod("guilty"), poison) == nil
	})
	if refused := e.Refused(); len(refused) != 0 {
		t.Errorf("refused: %v, want none", refused)
	}
}

func TestTextThatTheServerCannotParseIsNotSent(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	onSwitch := new(desired.SwitchPorts(switchRef("s")))
	sent := proxy.Transactions()
	for _, bad := range []string{"a\x00b", "\x00", "\xff"} {
		for name, model := range map[string]*nb.LogicalSwitchPort{
			"text":             {Name: bad},
			"optional text":    {Name: "p", Dhcpv4Options: &bad},
			"a set":            {Name: "p", PortSecurity: []string{"ok", bad}},
			"a value of a map": {Name: "p", Options: map[string]string{"virtual-parents": bad}},
			"a key of a map":   {Name: "p", Options: map[string]string{bad: "x"}},
			"an external ID":   {Name: "p", ExternalIDs: map[string]string{"x": bad}},
		} {
			err := e.try(pod("a"), []desired.Row{{Key: "ovn", Model: model, Parent: onSwitch}})
			if err == nil || !strings.Contains(err.Error(), "null character") {
				t.Errorf("%q as %s: got %v, want an error about the null character", bad, name, err)
			}
		}
	}
	if used := proxy.Transactions() - sent; used != 0 {
		t.Errorf("%d transactions were sent", used)
	}
	if refused := e.Refused(); len(refused) != 1 || refused[0].Owner != pod("a") {
		t.Errorf("refused: %v, want the owner", refused)
	}
}

func TestADeposedLeaderIsRefused(t *testing.T) {
	server := nbtest.Start(t)
	first := start(t, server.Endpoint())
	if err := first.try(subnet("s"), subnetRows("s")); !errors.Is(err, northbound.ErrDeposed) {
		t.Errorf("before Lead: got %v, want ErrDeposed", err)
	}
	first.takeLead()
	first.apply(subnet("s"), subnetRows("s"))
	over := first.Over()
	second := lead(t, server.Endpoint())
	if err := first.try(subnet("t"), subnetRows("t")); !errors.Is(err, northbound.ErrDeposed) {
		t.Errorf("got %v, want ErrDeposed", err)
	}
	select {
	case <-over:
	default:
		t.Error("the end of the first leader's term is not reported")
	}
	if got := first.Acknowledged(); !got.IsZero() {
		t.Errorf("the first leader's last commit is %v, want none", got)
	}
	if err := first.try(subnet("s"), nil); !errors.Is(err, northbound.ErrDeposed) {
		t.Errorf("got %v, want ErrDeposed", err)
	}
	if got := server.Names("Logical_Switch"); !cmp.Equal(got, []string{"s"}) {
		t.Errorf("switches: %v", got)
	}
	second.apply(subnet("u"), subnetRows("u"))
	first.takeLead()
	first.apply(subnet("t"), subnetRows("t"))
}

// A partitioned leader does not receive its successor's term; the fence in its transaction must stop it.
func TestADeposedLeaderThatWasCutOffIsRefused(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	first := lead(t, proxy.Endpoint())
	proxy.Hold()
	failed := make(chan error, 1)
	go func() { failed <- first.try(subnet("late"), subnetRows("late")) }()
	proxy.AwaitHeld()
	lead(t, server.Endpoint()).apply(subnet("s"), subnetRows("s"))
	proxy.Release()
	if err := <-failed; !errors.Is(err, northbound.ErrDeposed) {
		t.Errorf("got %v, want ErrDeposed", err)
	}
	if got := server.Names("Logical_Switch"); !cmp.Equal(got, []string{"s"}) {
		t.Errorf("switches: %v", got)
	}
}

// A transaction that is in flight while a barrier is written must not be committed after it, because the sender may have
// treated it as lost.
func TestABarrierStopsWhatWasSentBefore(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	proxy.Hold()
	sent := proxy.Transactions()
	done := make(chan error, 1)
	go func() { done <- e.try(subnet("late"), subnetRows("late")) }()
	proxy.AwaitHeld()
	server.Transact(nbtest.Op{"op": "mutate", "table": "NB_Global", "where": []any{}, "mutations": []any{
		[]any{"external_ids", "delete", []any{"set", []any{"kiln-barrier"}}},
		[]any{"external_ids", "insert", []any{"map", []any{[]any{"kiln-barrier", "1.7"}}}},
	}})
	proxy.Release()
	if err := <-done; err != nil {
		t.Errorf("got %v: the term is still its own", err)
	}
	if used := proxy.Transactions() - sent; used != 2 {
		t.Errorf("%d transactions, want one that is refused and one that is not", used)
	}
}

// An idle leader proves that it can write; a partitioned one cannot.
func TestTheLastCommitIsRenewed(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := prepare(t, proxy.Endpoint())
	northbound.SetCanaryInterval(e.Engine, 20*time.Millisecond)
	e.run()
	if got := e.Acknowledged(); !got.IsZero() {
		t.Errorf("before Lead: %v, want none", got)
	}
	e.takeLead()
	taken := e.Acknowledged()
	eventually.Wait{For: "the last commit is renewed", Pause: 5 * time.Millisecond}.Holds(t, func() bool { return e.Acknowledged().After(taken) })
	proxy.Hold()
	proxy.AwaitHeld()
	held := e.Acknowledged()
	time.Sleep(100 * time.Millisecond)
	if got := e.Acknowledged(); !got.Equal(held) {
		t.Errorf("the last commit is %v after %v, though nothing was committed", got, held)
	}
	proxy.Release()
	eventually.Wait{For: "the last commit is renewed again", Pause: 5 * time.Millisecond}.Holds(t, func() bool { return e.Acknowledged().After(held) })
}

func TestAnIdleLeaderCommitsOncePerInterval(t *testing.T) {
	const interval = time.Second
	server := nbtest.Start(t)
	e := prepare(t, server.Endpoint())
	northbound.SetCanaryInterval(e.Engine, interval)
	e.run()
	e.takeLead()
	last := e.Acknowledged()
	for range 3 {
		eventually.Wait{For: "the last commit is renewed", Pause: 5 * time.Millisecond}.Holds(t, func() bool { return e.Acknowledged().After(last) })
		next := e.Acknowledged()
		if gap := next.Sub(last); gap > interval*5/4 {
			t.Errorf("two commits are %v apart, want at most %v", gap, interval)
		}
		last = next
	}
}

func TestLeadersThatRaceTakeDifferentTerms(t *testing.T) {
	server := nbtest.Start(t)
	engines := make([]*engine, 5)
	for i := range engines {
		engines[i] = start(t, server.Endpoint())
	}
	var running sync.WaitGroup
	for _, e := range engines {
		running.Go(e.takeLead)
	}
	running.Wait()
	leaders := 0
	for i, e := range engines {
		err := e.try(subnet("s"), subnetRows(strings.Repeat("s", i+1)))
		switch {
		case err == nil:
			leaders++
		case !errors.Is(err, northbound.ErrDeposed):
			t.Error(err)
		}
	}
	if leaders != 1 {
		t.Errorf("%d leaders", leaders)
	}
	if got := len(server.Rows("NB_Global")); got != 1 {
		t.Errorf("%d rows in NB_Global", got)
	}
}

func TestARestartedServerIsFoundAgain(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(pod("a"), podRows("a", "s"))
	server.Restart()
	e.apply(pod("b"), podRows("b", "s"))
	if got := server.Names("Logical_Switch_Port"); !cmp.Equal(got, []string{"a.ns", "b.ns"}) {
		t.Errorf("ports: %v", got)
	}
}

func TestDriftDuringADisconnectionIsNoticed(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	for _, name := range []string{"edited", "deleted", "out"} {
		e.apply(pod(name), podRows(name, "s", "n"))
	}
	before := server.Dump()
	proxy.Close()
	edited := desired.Ref{Owner: pod("edited"), Key: "ovn"}.UUID()
	out := desired.Ref{Owner: pod("out"), Key: "ovn"}.UUID()
	deleted := desired.Ref{Owner: pod("deleted"), Key: "ovn"}.UUID()
	remove := func(uuid string) []any { return []any{[]any{"ports", "delete", nbtest.UUID(uuid)}} }
	server.Transact(
		nbtest.Op{
			"op": "update", "table": "Logical_Switch_Port", "where": nbtest.Where("_uuid", "==", nbtest.UUID(edited)),
			"row": map[string]any{"addresses": "unknown"},
		},
		nbtest.Op{"op": "mutate", "table": "Logical_Switch", "where": []any{}, "mutations": remove(deleted)},
		nbtest.Op{"op": "mutate", "table": "Port_Group", "where": []any{}, "mutations": remove(out)},
	)
	e.session.SetEndpoints([]string{server.Endpoint()})
	called := map[desired.Owner]bool{}
	for len(called) < 3 {
		select {
		case o := <-e.calls:
			called[o] = true
		case <-t.Context().Done():
			t.Fatalf("called for %v only", called)
		}
	}
	for _, name := range []string{"edited", "deleted", "out"} {
		e.apply(pod(name), podRows(name, "s", "n"))
	}
	if diff := cmp.Diff(before, server.Dump()); diff != "" {
		t.Errorf("not healed: %s", diff)
	}
}

// A row that a plan needs may be deleted before the server executes the plan.
func TestAParentThatVanishesMeanwhile(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	for _, vanishing := range []struct {
		table  string
		repair func()
	}{
		{"Logical_Switch", func() { e.apply(subnet("s"), subnetRows("s")) }},
		{"Port_Group", func() { e.apply(node("n"), nodeRows("n")) }},
	} {
		proxy.Hold()
		result := make(chan error, 1)
		go func() { result <- e.try(pod("a"), podRows("a", "s", "n")) }()
		proxy.AwaitHeld()
		server.Transact(nbtest.Op{"op": "delete", "table": vanishing.table, "where": []any{}})
		proxy.Release()
		if err := <-result; !errors.Is(err, northbound.ErrWaiting) {
			t.Errorf("%s vanished: got %v, want ErrWaiting", vanishing.table, err)
		}
		if got := server.Rows("Logical_Switch_Port"); len(got) != 0 {
			t.Errorf("%s vanished: ports %v", vanishing.table, got)
		}
		vanishing.repair()
		e.expectCall(pod("a"))
	}
	e.apply(pod("a"), podRows("a", "s", "n"))
}

func TestALostRaftLeaderIsReplaced(t *testing.T) {
	servers := nbtest.StartCluster(t, 3)
	endpoints := []string{}
	for _, server := range servers {
		endpoints = append(endpoints, server.Endpoint())
	}
	e := lead(t, endpoints...)
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	first, second := podNames(200)[:100], podNames(200)[100:]
	rows := func(name string) []desired.Row { return podRows(name, "s", "n") }
	e.applyAll(first, rows)
	var running sync.WaitGroup
	running.Go(func() { e.applyAll(second, rows) })
	leader := nbtest.Leader(servers)
	leader.Stop()
	running.Wait()
	survivor := nbtest.Leader(servers)
	if survivor == leader {
		t.Fatal("the stopped member leads")
	}
	if got := survivor.Rows("Port_Group")[groupRef("n").UUID()].Strings("ports"); len(got) != 200 {
		t.Errorf("%d ports in the group, want 200", len(got))
	}
}

func TestApplyEndsWithItsContext(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	proxy.Hold()
	go func() { _ = e.try(subnet("held"), subnetRows("held")) }()
	proxy.AwaitHeld()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Apply(ctx, subnet("s"), subnetRows("s")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	proxy.Release()
	e.apply(subnet("after"), subnetRows("after"))
}

func TestRowsThatMakeNoSenseAreRefused(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	onSwitch := new(desired.SwitchPorts(switchRef("s")))
	for name, rows := range map[string][]desired.Row{
		"two rows of one key":            append(subnetRows("x"), subnetRows("y")...),
		"a port without a parent":        {{Key: "k", Model: &nb.LogicalSwitchPort{Name: "p"}}},
		"a switch with a parent":         {{Key: "k", Model: &nb.LogicalSwitch{}, Parent: onSwitch}},
		"a policy on a switch's ports":   {{Key: "k", Model: &nb.LogicalRouterPolicy{}, Parent: onSwitch}},
		"a row without a possible owner": {{Key: "k", Model: &nb.NBGlobal{}}},
		"no model":                       {{Key: "k"}},
		"a nil model":                    {{Key: "k", Model: (*nb.LogicalSwitch)(nil)}},
		"a member of a parent's set":     {{Key: "k", Model: &nb.LogicalSwitchPort{}, Parent: onSwitch, Members: []desired.Set{*onSwitch}}},
		"a switch in a port group":       {{Key: "k", Model: &nb.LogicalSwitch{}, Members: []desired.Set{desired.GroupPorts(groupRef("n"))}}},
		"an element in a set of ports": {{
			Key: "k", Model: &nb.LogicalSwitch{}, Elements: []desired.Element{{Of: desired.GroupPorts(groupRef("n")), Value: "x"}},
		}},
		"a reference in a name": {{Key: "k", Model: &nb.LogicalSwitch{}, References: []desired.Reference{{Column: "name"}}}},
		"two references in one": {{
			Key: "k", Model: &nb.LogicalSwitchPort{}, Parent: onSwitch,
			References: []desired.Reference{{Column: "dhcpv4_options", To: []desired.Ref{switchRef("s"), switchRef("s")}}},
		}},
	} {
		if err := e.try(pod("a"), rows); err == nil || errors.Is(err, northbound.ErrWaiting) {
			t.Errorf("%s: got %v, want an error", name, err)
		}
	}
	if got := e.Owners("Pod"); len(got) != 0 {
		t.Errorf("something was written: %v", got)
	}
}
