// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// patience bounds the waits of the tests; it is far longer than any of them should take.
const patience = 2 * time.Minute

// engine is the engine of one process, with its subscriber calls recorded.
type engine struct {
	*northbound.Engine
	t       testing.TB
	session *ovsdbclient.Session
	stop    func()
	calls   chan desired.Owner
}

// start connects and runs an engine that does not lead yet.
func start(t testing.TB, endpoints ...string) *engine {
	t.Helper()
	e := prepare(t, endpoints...)
	e.run()
	return e
}

// prepare connects an engine without running it.
func prepare(t testing.TB, endpoints ...string) *engine {
	t.Helper()
	log := logr.Discard()
	if test, ok := t.(*testing.T); ok && testing.Verbose() {
		log = testr.New(test)
	}
	return prepareWith(t, log, endpoints...)
}

// prepareWith is prepare with a log.
func prepareWith(t testing.TB, log logr.Logger, endpoints ...string) *engine {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	session, err := ovsdbclient.Northbound(ctx, ovsdbclient.Options{Endpoints: endpoints, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := northbound.New(session, log)
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{Engine: inner, t: t, session: session, calls: make(chan desired.Owner, 10000)}
	for _, kind := range []string{"Subnet", "Node", "Vpc", "Policy", "Service", "Pod", "TrafficMirror"} {
		e.Subscribe(kind, func(o desired.Owner) { e.calls <- o })
	}
	return e
}

// run runs the engine until stop or the end of the test.
func (e *engine) run() {
	life, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := e.Start(life); err != nil {
			e.t.Error(err)
		}
	})
	e.stop = sync.OnceFunc(func() {
		end()
		running.Wait()
		e.session.Close()
	})
	e.t.Cleanup(e.stop)
}

// lead starts an engine that leads.
func lead(t testing.TB, endpoints ...string) *engine {
	t.Helper()
	e := start(t, endpoints...)
	e.takeLead()
	return e
}

func (e *engine) takeLead() {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), patience)
	defer cancel()
	if err := e.Lead(ctx); err != nil {
		e.t.Fatal(err)
	}
}

func (e *engine) try(o desired.Owner, want []desired.Row) error {
	ctx, cancel := context.WithTimeout(e.t.Context(), patience)
	defer cancel()
	return e.Apply(ctx, o, want)
}

func (e *engine) apply(o desired.Owner, want []desired.Row) {
	e.t.Helper()
	if err := e.try(o, want); err != nil {
		e.t.Fatal(err)
	}
}

// expectCall waits until the owner's subscriber is called.
func (e *engine) expectCall(o desired.Owner) {
	e.t.Helper()
	eventually.Wait{For: fmt.Sprintf("the subscriber is called for %s", o), Pause: time.Millisecond}.Holds(e.t, func() bool {
		for {
			select {
			case called := <-e.calls:
				if called == o {
					return true
				}
			default:
				return false
			}
		}
	})
}

// expectQuiet applies a marker and checks that no subscriber was called.
func (e *engine) expectQuiet() {
	e.t.Helper()
	e.apply(subnet("marker"), subnetRows("marker"))
	e.apply(subnet("marker"), nil)
	select {
	case o := <-e.calls:
		e.t.Fatalf("the subscriber was called for %s", o)
	default:
	}
}

func TestApplyingTheSameRowsAgainSendsNothing(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	everything := func() {
		e.apply(vpc("v"), vpcRows("v"))
		e.apply(subnet("s"), subnetRows("s"))
		e.apply(node("n"), nodeRows("n"))
		e.apply(policy("p"), policyRows("p"))
		e.apply(service("svc"), serviceRows("v"))
		e.apply(pod("a"), podRows("a", "s", "n"))
		e.apply(pod("b"), podWithAddress("b", "s", "10.16.0.3", "p"))
	}
	everything()
	sent, before := proxy.Transactions(), server.Dump()
	everything()
	if again := proxy.Transactions() - sent; again != 0 {
		t.Errorf("%d transactions were sent for rows that were there", again)
	}
	if diff := cmp.Diff(before, server.Dump()); diff != "" {
		t.Errorf("the database changed: %s", diff)
	}
	e.stop()
	restarted := lead(t, proxy.Endpoint())
	sent = proxy.Transactions()
	e = restarted
	everything()
	if again := proxy.Transactions() - sent; again != 0 {
		t.Errorf("%d transactions were sent after a restart", again)
	}
}

func TestRowsAreWrittenWithTheirReferences(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	dhcp := desired.Ref{Owner: subnet("s"), Key: "dhcp-4"}
	e.apply(subnet("s"), append(subnetRows("s"), desired.Row{
		Key: "dhcp-4", Model: &nb.DHCPOptions{Cidr: "10.16.0.0/16", Options: map[string]string{"lease_time": "3600"}},
	}))
	e.apply(node("n"), nodeRows("n"))
	rows := podRows("a", "s", "n")
	rows[0].References = []desired.Reference{{Column: "dhcpv4_options", To: []desired.Ref{dhcp}}}
	e.apply(pod("a"), rows)

	uuid := desired.Ref{Owner: pod("a"), Key: "ovn"}.UUID()
	want := nbtest.Row{
		"name": "a.ns", "type": "", "addresses": "00:00:00:00:00:01 10.16.0.2", "dhcpv4_options": dhcp.UUID(),
		"options": map[string]string{"iface-id-ver": "a"},
		"external_ids": map[string]string{
			"pod": "ns/a", "vendor": "kube-ovn", "kiln-owner": "Pod/ns/a", "kiln-key": "ovn",
			"kiln-parent": "Logical_Switch/ports/" + switchRef("s").UUID(),
		},
	}
	got := server.Rows("Logical_Switch_Port")[uuid]
	maps.DeleteFunc(got, func(_ string, v any) bool { set, ok := v.([]string); return ok && len(set) == 0 })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("port: %s", diff)
	}
	for table, ref := range map[string]desired.Ref{"Logical_Switch": switchRef("s"), "Port_Group": groupRef("n")} {
		if ports := server.Rows(table)[ref.UUID()].Strings("ports"); !slices.Equal(ports, []string{uuid}) {
			t.Errorf("ports of %s: %v", table, ports)
		}
	}
	if listed := northbound.Of[nb.LogicalSwitchPort](e.Engine, pod("a")); len(listed) != 1 || listed[0].Name != "a.ns" {
		t.Errorf("List: %v", listed)
	}

	rows[0].References = nil
	e.apply(pod("a"), rows)
	if got := server.Rows("Logical_Switch_Port")[uuid].Strings("dhcpv4_options"); len(got) != 0 {
		t.Errorf("the reference is still there: %v", got)
	}
}

func TestOnlyWhatChangedIsWritten(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(subnet("s2"), subnetRows("s2"))
	e.apply(node("n"), nodeRows("n"))
	e.apply(node("m"), nodeRows("m"))
	e.apply(pod("a"), podRows("a", "s", "n"))
	uuid := desired.Ref{Owner: pod("a"), Key: "ovn"}.UUID()
	port := func() nbtest.Row { return server.Rows("Logical_Switch_Port")[uuid] }

	// Columns that northd writes stay.
	server.Transact(nbtest.Op{
		"op": "update", "table": "Logical_Switch_Port", "where": nbtest.Where("_uuid", "==", nbtest.UUID(uuid)),
		"row": map[string]any{"up": true, "tag": 7},
	})
	rows := podRows("a", "s", "n")
	rows[0].Model.(*nb.LogicalSwitchPort).Options = nil
	rows[0].Model.(*nb.LogicalSwitchPort).PortSecurity = []string{"b", "a", "b"}
	e.apply(pod("a"), rows)
	if got := port(); got["up"] != true || got["tag"] != 7.0 || len(got["options"].(map[string]string)) != 0 {
		t.Errorf("port after a change of other columns: %v", got)
	}
	if got := port().Strings("port_security"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("port_security: %v", got)
	}

	// A move to another switch and other groups keeps the row.
	e.apply(pod("a"), podRows("a", "s2", "m"))
	if port() == nil || port()["up"] != true {
		t.Error("the port did not survive its move")
	}
	for ref, want := range map[desired.Ref]int{switchRef("s"): 0, switchRef("s2"): 1} {
		if ports := server.Rows("Logical_Switch")[ref.UUID()].Strings("ports"); len(ports) != want {
			t.Errorf("ports of %s: %v", ref.Owner, ports)
		}
	}
	for ref, want := range map[desired.Ref]int{groupRef("n"): 0, groupRef("m"): 1} {
		if ports := server.Rows("Port_Group")[ref.UUID()].Strings("ports"); len(ports) != want {
			t.Errorf("ports of %s: %v", ref.Owner, ports)
		}
	}
	e.expectQuiet()
}

func TestDeletionLeavesNothing(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	before := server.Dump()
	e.apply(vpc("v"), vpcRows("v"))
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	e.apply(policy("p"), policyRows("p"))
	e.apply(service("svc"), serviceRows("v"))
	e.apply(pod("a"), podRows("a", "s", "n"))
	e.apply(pod("b"), podWithAddress("b", "s", "10.16.0.3", "p"))
	if got := e.Owners("Pod"); len(got) != 2 {
		t.Errorf("owners: %v", got)
	}
	for _, o := range []desired.Owner{pod("a"), pod("b"), service("svc"), policy("p"), node("n"), subnet("s"), vpc("v")} {
		e.apply(o, nil)
		if got := e.Owners(o.Kind); slices.Contains(got, o) {
			t.Errorf("%s still owns rows", o)
		}
	}
	if diff := cmp.Diff(before, server.Dump()); diff != "" {
		t.Errorf("left over: %s", diff)
	}
}

// queued applies in the background and returns once the request is in the engine's queue.
func (e *engine) queued(o desired.Owner, want []desired.Row) <-chan error {
	e.t.Helper()
	result := make(chan error, 1)
	go func() { result <- e.try(o, want) }()
	eventually.Wait{For: "the request is queued", Pause: 100 * time.Microsecond}.Holds(e.t, func() bool { return northbound.Busy(e.Engine, o) })
	return result
}

// applyAll applies pods concurrently.
func (e *engine) applyAll(names []string, rows func(name string) []desired.Row) {
	e.t.Helper()
	var running sync.WaitGroup
	for _, name := range names {
		running.Go(func() {
			if err := e.try(pod(name), rows(name)); err != nil {
				e.t.Error(err)
			}
		})
	}
	running.Wait()
}

func TestForeignRowsAreUntouched(t *testing.T) {
	server := nbtest.Start(t)
	// Rows of other clients, with names and sets similar to ours; one has a copy of our keys.
	copied := nbtest.Map(map[string]string{"kiln-owner": "Pod/ns/a", "kiln-key": "ovn", "vendor": "kube-ovn"})
	server.Transact(
		nbtest.Op{"op": "insert", "table": "NB_Global", "row": map[string]any{"external_ids": nbtest.Map(map[string]string{"theirs": "x"})}},
		nbtest.Op{"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "p", "row": map[string]any{"name": "theirs", "external_ids": copied}},
		nbtest.Op{"op": "insert", "table": "Logical_Switch", "row": map[string]any{"name": "s", "ports": []any{"named-uuid", "p"}}},
		nbtest.Op{"op": "insert", "table": "Port_Group", "row": map[string]any{"name": "pg", "ports": []any{"named-uuid", "p"}}},
		nbtest.Op{"op": "insert", "table": "Load_Balancer_Group", "row": map[string]any{"name": "kiln:Vpc//v#services"}},
	)
	before := server.Dump()
	e := lead(t, server.Endpoint())
	if got := e.Owners("Pod"); len(got) != 0 {
		t.Errorf("a copy of our keys made owners: %v", got)
	}
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	e.apply(pod("a"), podRows("a", "s", "n"))
	// The engine must not change a membership of our port in their group, or of their port in our group.
	ours, theirs := desired.Ref{Owner: pod("a"), Key: "ovn"}.UUID(), slices.Collect(maps.Keys(before["Logical_Switch_Port"]))[0]
	insert := func(uuid string) []any { return []any{[]any{"ports", "insert", nbtest.UUID(uuid)}} }
	server.Transact(
		nbtest.Op{"op": "mutate", "table": "Port_Group", "where": nbtest.Where("name", "==", "pg"), "mutations": insert(ours)},
		nbtest.Op{"op": "mutate", "table": "Port_Group", "where": nbtest.Where("name", "==", "pods_n"), "mutations": insert(theirs)},
	)
	e.expectCall(pod("a"))
	e.apply(pod("a"), podRows("a", "s", "n"))
	for name, row := range server.Rows("Port_Group") {
		if got := row.Strings("ports"); len(got) != 2 {
			t.Errorf("ports of group %s: %v", name, got)
		}
	}
	for _, o := range []desired.Owner{pod("a"), node("n"), subnet("s")} {
		e.apply(o, nil)
	}
	after := server.Dump()
	for _, row := range after["NB_Global"] {
		delete(row["external_ids"].(map[string]string), "kiln-leader-term")
		delete(row["external_ids"].(map[string]string), "kiln-barrier")
		delete(row["options"].(map[string]string), "northd-backoff-interval-ms")
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("rows of others changed: %s", diff)
	}
}
