// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

func TestARowWithoutAValidRecordOfItsParentIsStillDeleted(t *testing.T) {
	lost := []any{"external_ids", "delete", []any{"set", []any{"kiln-parent"}}}
	named := func(set string) []any {
		return []any{"external_ids", "insert", nbtest.Map(map[string]string{"kiln-parent": set + "/" + switchRef("s").UUID()})}
	}
	for name, damage := range map[string][]any{
		"the record is lost":                                {lost},
		"the record names a set that cannot hold the row":   {lost, named("Logical_Switch/acls")},
		"the record names a table that cannot hold the row": {lost, named("Logical_Router/ports")},
	} {
		t.Run(name, func(t *testing.T) {
			server := nbtest.Start(t)
			e := lead(t, server.Endpoint())
			e.apply(subnet("s"), subnetRows("s"))
			e.apply(pod("a"), podRows("a", "s"))
			server.Transact(nbtest.Op{"op": "mutate", "table": "Logical_Switch_Port", "where": []any{}, "mutations": damage})
			e.expectCall(pod("a"))
			e.apply(pod("a"), nil)
			if got := server.Rows("Logical_Switch_Port"); len(got) != 0 {
				t.Errorf("left over: %v", got)
			}
		})
	}
}

func TestWaitingForRowsOfOthers(t *testing.T) {
	for name, missing := range map[string]struct {
		rows   []desired.Row
		arrive func(e *engine)
	}{
		"a parent": {podRows("a", "late"), func(e *engine) { e.apply(subnet("late"), subnetRows("late")) }},
		"a group":  {podRows("a", "s", "late"), func(e *engine) { e.apply(node("late"), nodeRows("late")) }},
		"a set of addresses": {
			podWithAddress("a", "s", "10.16.0.2", "late"),
			func(e *engine) { e.apply(policy("late"), policyRows("late")) },
		},
		"a reference": {
			[]desired.Row{{Key: "ovn", Model: &nb.LogicalSwitch{Name: "x"}, References: []desired.Reference{
				{Column: "load_balancer_group", To: []desired.Ref{servicesRef("late")}},
			}}},
			func(e *engine) { e.apply(vpc("late"), vpcRows("late")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := nbtest.Start(t)
			proxy := server.Proxy()
			e := lead(t, proxy.Endpoint())
			e.apply(subnet("s"), subnetRows("s"))
			sent := proxy.Transactions()
			if err := e.try(pod("a"), missing.rows); !errors.Is(err, northbound.ErrWaiting) {
				t.Fatalf("got %v, want ErrWaiting", err)
			}
			if proxy.Transactions() != sent {
				t.Error("something was sent")
			}
			missing.arrive(e)
			e.expectCall(pod("a"))
			e.apply(pod("a"), missing.rows)
		})
	}
}

func TestParentsThatVanish(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	e.apply(pod("a"), podRows("a", "s", "n"))
	server.Transact(nbtest.Op{"op": "delete", "table": "Logical_Switch", "where": nbtest.Where("name", "==", "s")})
	e.expectCall(pod("a"))
	if err := e.try(pod("a"), podRows("a", "s", "n")); !errors.Is(err, northbound.ErrWaiting) {
		t.Fatalf("got %v, want ErrWaiting", err)
	}
	e.apply(subnet("s"), subnetRows("s"))
	e.expectCall(pod("a"))
	e.apply(pod("a"), podRows("a", "s", "n"))

	server.Transact(nbtest.Op{"op": "delete", "table": "Port_Group", "where": []any{}})
	e.expectCall(pod("a"))
	e.apply(node("n"), nodeRows("n"))
	e.apply(pod("a"), podRows("a", "s", "n"))
	if got := server.Rows("Port_Group")[groupRef("n").UUID()].Strings("ports"); len(got) != 1 {
		t.Errorf("ports of the group: %v", got)
	}
}

func TestDriftIsHealed(t *testing.T) {
	port := nbtest.Where("_uuid", "==", nbtest.UUID(desired.Ref{Owner: pod("a"), Key: "ovn"}.UUID()))
	for name, damage := range map[string]nbtest.Op{
		"a column is edited": {
			"op": "update", "table": "Logical_Switch_Port", "where": port, "row": map[string]any{"addresses": "unknown"},
		},
		"its external_ids are cleared": {
			"op": "update", "table": "Logical_Switch_Port", "where": port, "row": map[string]any{"external_ids": nbtest.Map(nil)},
		},
		"its record of the parent is wrong": {
			"op": "mutate", "table": "Logical_Switch_Port", "where": port,
			"mutations": []any{
				[]any{"external_ids", "delete", []any{"set", []any{"kiln-parent"}}},
				[]any{"external_ids", "insert", nbtest.Map(map[string]string{"kiln-parent": "x/y/z"})},
			},
		},
		"it is taken off its switch": {
			"op": "update", "table": "Logical_Switch", "where": nbtest.Where("name", "==", "s"),
			"row": map[string]any{"ports": []any{"set", []any{}}},
		},
		"it is taken out of its group": {
			"op": "update", "table": "Port_Group", "where": nbtest.Where("name", "==", "pods_n"),
			"row": map[string]any{"ports": []any{"set", []any{}}},
		},
		"it is put into another group of ours": {
			"op": "mutate", "table": "Port_Group", "where": nbtest.Where("name", "==", "pods_m"),
			"mutations": []any{[]any{"ports", "insert", nbtest.UUID(desired.Ref{Owner: pod("a"), Key: "ovn"}.UUID())}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := nbtest.Start(t)
			e := lead(t, server.Endpoint())
			e.apply(subnet("s"), subnetRows("s"))
			e.apply(node("n"), nodeRows("n"))
			e.apply(node("m"), nodeRows("m"))
			e.apply(pod("a"), podRows("a", "s", "n"))
			e.expectQuiet()
			before := server.Dump()
			server.Transact(damage)
			if cmp.Diff(before, server.Dump()) == "" {
				t.Fatal("no damage was done")
			}
			e.expectCall(pod("a"))
			e.apply(pod("a"), podRows("a", "s", "n"))
			if diff := cmp.Diff(before, server.Dump()); diff != "" {
				t.Errorf("not healed: %s", diff)
			}
		})
	}
}

// A route without its BFD session is written all the same, and follows the session of another owner.
func TestOptionalReferences(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	session := desired.Ref{Owner: node("n"), Key: "session"}
	rows := vpcRows("v")
	rows[2].References = []desired.Reference{{Column: "bfd", To: []desired.Ref{session}, Optional: true}}
	expect := func(want ...string) {
		t.Helper()
		for _, row := range server.Rows("Logical_Router_Static_Route") {
			if got := row.Strings("bfd"); !slices.Equal(got, want) {
				t.Errorf("the route has the sessions %v, want %v", got, want)
			}
		}
	}
	e.apply(vpc("v"), rows)
	expect()
	e.apply(node("n"), []desired.Row{{Key: "session", Model: &nb.BFD{LogicalPort: "v-ext", DstIP: "192.0.2.254"}}})
	e.expectCall(vpc("v"))
	e.apply(vpc("v"), rows)
	expect(session.UUID())
	e.apply(node("n"), nil)
	e.expectCall(vpc("v"))
	e.apply(vpc("v"), rows)
	expect()
	e.apply(node("n"), []desired.Row{{Key: "session", Model: &nb.BFD{LogicalPort: "v-ext", DstIP: "192.0.2.254"}}})
	e.expectCall(vpc("v"))
	rows[2].References = nil
	e.apply(vpc("v"), rows)
	expect()
}

// The owner of a BFD session is notified of its status, which the engine does not manage.
func TestTheStatusOfABFDSession(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(node("n"), []desired.Row{{Key: "session", Model: &nb.BFD{LogicalPort: "v-ext", DstIP: "192.0.2.254"}}})
	e.expectQuiet()
	for _, status := range []string{"down", "up"} {
		server.Transact(nbtest.Op{"op": "update", "table": "BFD", "where": []any{}, "row": map[string]any{"status": status}})
		e.expectCall(node("n"))
		if row := northbound.Get[nb.BFD](e.Engine, desired.Ref{Owner: node("n"), Key: "session"}); row == nil || row.Status == nil || *row.Status != status {
			t.Errorf("the session is %v, want %s", row, status)
		}
		e.apply(node("n"), []desired.Row{{Key: "session", Model: &nb.BFD{LogicalPort: "v-ext", DstIP: "192.0.2.254"}}})
	}
}
