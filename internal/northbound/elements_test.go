// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// valuesOf are the addresses in the set of a policy.
func valuesOf(server *nbtest.Server, name string) []string {
	return server.Rows("Address_Set")[addressesRef(name).UUID()].Strings("addresses")
}

func TestSharedElements(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(policy("p"), policyRows("p"))
	addresses := func() []string {
		return valuesOf(server, "p")
	}
	e.apply(pod("a"), podWithAddress("a", "s", "10.16.0.9", "p"))
	e.apply(pod("b"), podWithAddress("b", "s", "10.16.0.9", "p"))
	e.apply(pod("a"), podRows("a", "s"))
	if got := addresses(); !slices.Equal(got, []string{"10.16.0.9"}) {
		t.Errorf("after one of two owners gave the address up: %v", got)
	}
	e.stop()
	e = lead(t, server.Endpoint()) // the record of which row added a value must survive a restart
	e.apply(pod("b"), podWithAddress("b", "s", "10.16.0.10", "p"))
	if got := addresses(); !slices.Equal(got, []string{"10.16.0.10"}) {
		t.Errorf("after the other changed its address: %v", got)
	}
	server.Transact(nbtest.Op{
		"op": "update", "table": "Address_Set", "where": []any{}, "row": map[string]any{"addresses": "192.0.2.1"},
	})
	e.expectCall(pod("b"))
	e.apply(pod("b"), podWithAddress("b", "s", "10.16.0.10", "p"))
	if got := addresses(); !slices.Equal(got, []string{"10.16.0.10", "192.0.2.1"}) {
		t.Errorf("after someone overwrote the set: %v", got)
	}
}

// TestAValueWhoseRowWentWithItsParentGoes checks the removal of an orphan by the owner of the set: the owner of the deleted row
// may never be applied again.
func TestAValueWhoseRowWentWithItsParentGoes(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(policy("p"), policyRows("p"))
	e.apply(pod("a"), podWithAddress("a", "s", "10.16.0.9", "p"))
	e.apply(subnet("s"), nil)
	e.expectCall(policy("p"))
	e.apply(policy("p"), policyRows("p"))
	addresses := func() []string {
		return valuesOf(server, "p")
	}
	if got := addresses(); len(got) != 0 {
		t.Errorf("left over: %v", got)
	}

	e.apply(subnet("s"), subnetRows("s"))
	e.apply(pod("a"), podWithAddress("a", "s", "10.16.0.9", "p"))
	e.stop()
	server.Transact(nbtest.Op{"op": "delete", "table": "Logical_Switch", "where": []any{}})
	e = lead(t, server.Endpoint())
	e.apply(policy("p"), policyRows("p"))
	if got := addresses(); len(got) != 0 {
		t.Errorf("left over after a restart: %v", got)
	}
}

// recording returns the rows of a pod that record an address whether or not it is in a set.
func recording(name, on, address string, sets ...string) []desired.Row {
	rows := podWithAddress(name, on, address, sets...)
	rows[0].Values = []string{address}
	return rows
}

// ovn-northd computes much more for a changed port than for a changed set.
func TestAChangeOfSetsChangesOnlyTheSets(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	for _, name := range []string{"p", "q"} {
		e.apply(policy(name), policyRows(name))
	}
	e.apply(pod("a"), recording("a", "s", "10.16.0.9"))
	before := server.Rows("Logical_Switch_Port")
	for _, sets := range [][]string{{"p"}, {"p", "q"}, {"q"}, {}} {
		e.apply(pod("a"), recording("a", "s", "10.16.0.9", sets...))
		for _, name := range []string{"p", "q"} {
			if got := valuesOf(server, name); (len(got) == 1) != slices.Contains(sets, name) {
				t.Errorf("in %v: set %s has %v", sets, name, got)
			}
		}
	}
	if diff := cmp.Diff(before, server.Rows("Logical_Switch_Port")); diff != "" {
		t.Error(diff)
	}
}

// A value is not taken for a leftover while its transaction is under way.
func TestAChangeOfSetsNotifiesNoOtherOwner(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	for _, name := range []string{"p", "q"} {
		e.apply(policy(name), policyRows(name))
	}
	e.apply(pod("a"), recording("a", "s", "10.16.0.9"))
	for _, sets := range [][]string{{"p"}, {"q"}, {"p", "q"}} {
		e.apply(pod("a"), recording("a", "s", "10.16.0.9", sets...))
	}
	e.expectQuiet()
	for _, name := range []string{"p", "q"} {
		e.apply(policy(name), policyRows(name))
		if got := valuesOf(server, name); len(got) != 1 {
			t.Errorf("after its owner was applied again, set %s has %v", name, got)
		}
	}
}

// The first Apply after a restart removes a row's values from all sets that it does not want, unless another owner may have added them.
func TestAfterARestartValuesLeaveTheSetsOfTheirFormerOwners(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	restart := func() {
		e.stop()
		e = lead(t, server.Endpoint())
	}
	has := func(step string, want ...string) {
		t.Helper()
		for _, name := range []string{"p", "q"} {
			if got := valuesOf(server, name); (len(got) == 1) != slices.Contains(want, name) {
				t.Errorf("%s: set %s has %v", step, name, got)
			}
		}
	}
	e.apply(subnet("s"), subnetRows("s"))
	for _, name := range []string{"p", "q"} {
		e.apply(policy(name), policyRows(name))
	}
	e.apply(pod("a"), recording("a", "s", "10.16.0.9", "p", "q"))
	server.Transact(nbtest.Op{"op": "insert", "table": "Address_Set", "row": map[string]any{"name": "foreign", "addresses": "10.16.0.9"}})
	restart()
	e.apply(pod("a"), recording("a", "s", "10.16.0.9", "q"))
	has("its labels changed meanwhile", "q")
	if !slices.ContainsFunc(slices.Collect(maps.Values(server.Rows("Address_Set"))), func(row nbtest.Row) bool {
		return row["name"] == "foreign" && slices.Equal(row.Strings("addresses"), []string{"10.16.0.9"})
	}) {
		t.Error("the set of another program has changed")
	}
	restart()
	e.apply(pod("a"), nil)
	has("it was deleted meanwhile")

	e.apply(pod("a"), recording("a", "s", "10.16.0.9", "p", "q"))
	e.apply(pod("b"), recording("b", "s", "10.16.0.9", "q"))
	restart()
	e.apply(pod("a"), recording("a", "s", "10.16.0.9"))
	has("another owner may have added them", "p", "q")
	e.apply(pod("b"), recording("b", "s", "10.16.0.9", "q"))
	has("the other owner has added one", "q")
	restart()
	e.apply(pod("a"), nil)
	has("another pod can get the address of a deleted one")
	e.apply(pod("b"), recording("b", "s", "10.16.0.9", "q"))
	has("the other owner adds its own again", "q")
	e.apply(pod("a"), recording("a", "s", "10.16.0.9"))
	e.apply(pod("b"), recording("b", "s", "10.16.0.9"))
	has("an owner without elements holds none")
	e.apply(pod("a"), recording("a", "s", "10.16.0.9", "p"))
	restart()
	e.apply(pod("b"), nil)
	e.apply(pod("a"), recording("a", "s", "10.16.0.9", "p"))
	has("both are known", "p")
}

// The server refuses the rows of an owner, in a batch with valid ones: the owner keeps its former elements.
func TestARefusedOwnerHoldsItsFormerElements(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	for _, name := range []string{"p", "q"} {
		e.apply(policy(name), policyRows(name))
	}
	e.apply(pod("a"), recording("a", "s", "10.16.0.9", "p"))
	e.apply(pod("b"), recording("b", "s", "10.16.0.9", "p", "q"))
	refused := recording("a", "s", "10.16.0.9", "q")
	refused[0].Model.(*nb.LogicalSwitchPort).Name = "b.ns"
	for range 2 {
		proxy.Hold()
		first := e.queued(subnet("held"), subnetRows("held"))
		proxy.AwaitHeld()
		bad, good := e.queued(pod("a"), refused), e.queued(pod("c"), recording("c", "s", "10.16.0.10"))
		proxy.Release()
		if err := <-bad; err == nil {
			t.Fatal("a duplicate name is not refused")
		}
		for _, result := range []<-chan error{first, good} {
			if err := <-result; err != nil {
				t.Fatal(err)
			}
		}
		e.apply(subnet("held"), nil)
		e.apply(pod("c"), nil)
	}
	e.apply(pod("b"), recording("b", "s", "10.16.0.9"))
	for name, want := range map[string]int{"p": 1, "q": 0} {
		if got := valuesOf(server, name); len(got) != want {
			t.Errorf("set %s has %v", name, got)
		}
	}
}

// While one owner leaves a set, another one with the value cannot know who of them removes it.
func TestTwoOwnersLeaveASetAtOnce(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	for _, name := range []string{"p", "q"} {
		e.apply(policy(name), policyRows(name))
	}
	e.apply(pod("a"), recording("a", "s", "10.16.0.9", "p", "q"))
	e.apply(pod("b"), recording("b", "s", "10.16.0.9", "p"))
	proxy.Hold()
	first := e.queued(pod("a"), recording("a", "s", "10.16.0.9"))
	proxy.AwaitHeld()
	second := e.queued(pod("b"), recording("b", "s", "10.16.0.9"))
	proxy.Release()
	for _, result := range []<-chan error{first, second} {
		if err := <-result; err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"p", "q"} {
		if got := valuesOf(server, name); len(got) != 0 {
			t.Errorf("set %s has %v", name, got)
		}
	}
}

// A new row that records the value of a leftover does not make it its own.
func TestALeftoverIsNotOfANewRowWithItsValue(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(subnet("other"), subnetRows("other"))
	e.apply(policy("p"), policyRows("p"))
	e.apply(pod("a"), recording("a", "s", "10.16.0.9", "p"))
	e.apply(subnet("s"), nil)
	e.expectCall(policy("p"))
	e.apply(pod("b"), recording("b", "other", "10.16.0.9"))
	e.apply(policy("p"), policyRows("p"))
	if got := valuesOf(server, "p"); len(got) != 0 {
		t.Errorf("left over: %v", got)
	}
}

// The first answer is lost with its request, the second one alone: the database has elements that the engine does not know of.
func TestElementsOfLostAnswersAreReleased(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	for _, name := range []string{"p", "q"} {
		e.apply(policy(name), policyRows(name))
	}
	e.apply(pod("a"), recording("a", "s", "10.16.0.9", "p"))
	for _, faults := range [][]nbtest.Fault{{nbtest.ReplyLost}, {nbtest.RequestLost, nbtest.ReplyLost}, {nbtest.ReplyLost, nbtest.RequestLost}} {
		for i, fault := range faults {
			proxy.Fail(1+2*i, fault) // a barrier is between two attempts
		}
		if err := e.try(pod("a"), recording("a", "s", "10.16.0.9", "q")); err != nil && !errors.Is(err, northbound.ErrNoAnswer) {
			t.Fatal(err)
		}
		eventually.Wait{For: "an answer", Pause: 50 * time.Millisecond}.Holds(t, func() bool { return e.try(pod("a"), recording("a", "s", "10.16.0.9")) == nil })
		for _, name := range []string{"p", "q"} {
			if got := valuesOf(server, name); len(got) != 0 {
				t.Errorf("%v: set %s has %v", faults, name, got)
			}
		}
	}
}

func TestAStrayValueOfARowLeavesTheSet(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(policy("p"), policyRows("p"))
	e.apply(pod("a"), recording("a", "s", "10.16.0.9"))
	server.Transact(nbtest.Op{"op": "update", "table": "Address_Set", "where": []any{}, "row": map[string]any{"addresses": "10.16.0.9"}})
	e.expectCall(policy("p"))
	e.apply(policy("p"), policyRows("p"))
	if got := valuesOf(server, "p"); len(got) != 0 {
		t.Errorf("left over: %v", got)
	}
}

// Former versions recorded the sets, too.
func TestTheFormerRecordOfElementsIsRead(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(policy("p"), policyRows("p"))
	e.apply(pod("a"), recording("a", "s", "10.16.0.9", "p"))
	e.stop()
	server.Transact(nbtest.Op{"op": "mutate", "table": "Logical_Switch_Port", "where": []any{}, "mutations": []any{
		[]any{"external_ids", "delete", []any{"set", []any{"kiln-values"}}},
		[]any{"external_ids", "insert", nbtest.Map(map[string]string{"kiln-elements": "Address_Set/addresses/" + addressesRef("p").UUID() + "=10.16.0.9"})},
	}})
	e = lead(t, server.Endpoint())
	e.apply(policy("p"), policyRows("p"))
	addresses := func() []string { return valuesOf(server, "p") }
	if got := addresses(); len(got) != 1 {
		t.Errorf("it is taken for a leftover: %v", got)
	}
	e.apply(pod("a"), recording("a", "s", "10.16.0.9"))
	if got := addresses(); len(got) != 0 {
		t.Errorf("left over: %v", got)
	}
}

func TestAValueGivenUpByAllInOneBatchGoes(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(policy("p"), policyRows("p"))
	names := podNames(50)
	e.applyAll(names, func(name string) []desired.Row { return podWithAddress(name, "s", "10.16.0.9", "p") })
	e.applyAll(names, func(string) []desired.Row { return nil })
	if got := valuesOf(server, "p"); len(got) != 0 {
		t.Errorf("left over: %v", got)
	}
}

func TestAValueThatPassesFromOneOwnerToAnotherInOneBatchStays(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(policy("p"), policyRows("p"))
	e.apply(pod("old"), podWithAddress("old", "s", "10.16.0.9", "p"))
	proxy.Hold()
	results := []<-chan error{e.queued(subnet("held"), subnetRows("held"))}
	proxy.AwaitHeld()
	sent := proxy.Transactions()
	for name, rows := range map[string][]desired.Row{"old": nil, "new": podWithAddress("new", "s", "10.16.0.9", "p")} {
		results = append(results, e.queued(pod(name), rows))
	}
	proxy.Release()
	for _, result := range results {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
	if got := proxy.Transactions() - sent; got != 2 {
		t.Fatalf("%d transactions, want the one held and one batch", got)
	}
	if got := valuesOf(server, "p"); !slices.Equal(got, []string{"10.16.0.9"}) {
		t.Errorf("addresses: %v", got)
	}
}

// ovsdb-server leaves the UUID of a deleted row in a row that the same transaction changes.
func TestADeletedRowLeavesAGroupThatChangesInOneBatch(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	e.apply(pod("a"), podRows("a", "s", "n"))
	proxy.Hold()
	first := e.queued(policy("p"), policyRows("p"))
	proxy.AwaitHeld()
	changed := nodeRows("n")
	changed[0].Model.(*nb.PortGroup).ExternalIDs = map[string]string{"selector": "another"}
	group, deletion := e.queued(node("n"), changed), e.queued(pod("a"), nil)
	proxy.Release()
	for _, result := range []<-chan error{first, group, deletion} {
		if err := <-result; err != nil {
			t.Fatal(err)
		}
	}
	if ports := server.Rows("Port_Group")[groupRef("n").UUID()].Strings("ports"); len(ports) > 0 {
		t.Errorf("the group has the deleted ports %v", ports)
	}
}
