// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

func TestSharedElements(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(policy("p"), policyRows("p"))
	addresses := func() []string {
		return server.Rows("Address_Set")[addressesRef("p").UUID()].Strings("addresses")
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
		return server.Rows("Address_Set")[addressesRef("p").UUID()].Strings("addresses")
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

func TestAValueGivenUpByAllInOneBatchGoes(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(policy("p"), policyRows("p"))
	names := podNames(50)
	e.applyAll(names, func(name string) []desired.Row { return podWithAddress(name, "s", "10.16.0.9", "p") })
	e.applyAll(names, func(string) []desired.Row { return nil })
	if got := server.Rows("Address_Set")[addressesRef("p").UUID()].Strings("addresses"); len(got) != 0 {
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
	if got := server.Rows("Address_Set")[addressesRef("p").UUID()].Strings("addresses"); !slices.Equal(got, []string{"10.16.0.9"}) {
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
