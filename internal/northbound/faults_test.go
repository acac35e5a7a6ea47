// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
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
