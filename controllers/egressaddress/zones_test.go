// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// zones returns the tracking zone that each router of an EgressAddress requests, by the name of the EgressAddress.
func (w *world) zones() map[string]string {
	w.Helper()
	zones := map[string]string{}
	for _, row := range w.Database.Rows("Logical_Router") {
		if name, _, is := strings.Cut(fmt.Sprint(row["name"]), "_egress-"); is {
			options, _ := row["options"].(map[string]string)
			zones[name] += options["snat-ct-zone"]
		}
	}
	return zones
}

// TestOtherAddressesAreTranslatedInAnotherZone: a router for other addresses never has the zone of the former one, in which a connection that sends without a pause is tracked with
// the former address. A router that stays keeps its zone, which its connections need.
func TestOtherAddressesAreTranslatedInAnotherZone(t *testing.T) {
	w := newWorld(t)
	w.pod("team-a", "web", "web")
	one, two := onNodes("one", "a", "172.30.0.210"), onNodes("two", "a", "172.30.0.211")
	w.Create(one, two)
	w.Ready(one)
	w.Eventually(func() string {
		if zones := w.zones(); len(zones) != 2 {
			return fmt.Sprint(zones)
		}
		return ""
	})
	before := w.zones()
	if _, err := strconv.Atoi(before["one"]); err != nil || before["one"] == before["two"] {
		t.Fatalf("the zones are %v", before)
	}
	move := func(address string) (after string) {
		former := w.zones()["one"]
		w.Get(one)
		w.Change(one, func() { one.Spec.Addresses = []string{address} })
		w.Eventually(func() string {
			if w.Get(one); !slices.Equal(one.Status.Addresses, one.Spec.Addresses) {
				return fmt.Sprint(one.Status.Addresses)
			}
			return ""
		})
		zones := w.zones()
		if _, err := strconv.Atoi(zones["one"]); err != nil || zones["one"] == former || zones["one"] == zones["two"] {
			t.Errorf("with %s the zones are %v, and the former zone was %s", address, zones, former)
		}
		return zones["one"]
	}
	after := move("172.30.0.212")
	w.run()
	w.Rests("egressaddress")
	if zones := w.zones(); zones["one"] != after || zones["two"] != before["two"] {
		t.Errorf("after a restart the zones are %v, want %s and %s", zones, after, before["two"])
	}

	// Rows as an earlier version wrote them, without zones.
	w.process.Stop()
	w.Database.Transact(nbtest.Op{"op": "mutate", "table": "Logical_Router", "where": []any{}, "mutations": []any{
		[]any{"options", "delete", []any{"set", []any{"snat-ct-zone"}}},
	}})
	w.run()
	w.Rests("egressaddress")
	if zones := w.zones(); zones["one"] != "" || zones["two"] != "" {
		t.Errorf("routers of an earlier version got the zones %v", zones)
	}
	move("172.30.0.213")
}

// TestTwoRoutersNeverHaveOneAddress: an EgressAddress gets the address of a deleted one, or of one with another address now, after the router of the former one has lost it, whichever is
// applied first.
func TestTwoRoutersNeverHaveOneAddress(t *testing.T) {
	w := newWorld(t)
	w.pod("team-a", "web", "web")
	g := w.guard()
	g.watch()
	one, two := onNodes("one", "a", "172.30.0.210"), onNodes("two", "a", "172.30.0.211")
	two.Spec.PodSelector.MatchLabels["app"] = "db"
	w.Create(one, two)
	w.Ready(one)
	w.Ready(two)
	exchange := func(a, b string) {
		for o, address := range map[*kubeovnv1.EgressAddress]string{one: a, two: b} {
			w.Get(o)
			w.Change(o, func() { o.Spec.Addresses = []string{address} })
		}
	}
	applied := func(a, b string) {
		w.Eventually(func() string {
			w.Get(one)
			w.Get(two)
			if got := []string{fmt.Sprint(one.Status.Addresses), fmt.Sprint(two.Status.Addresses)}; !slices.Equal(got, []string{"[" + a + "]", "[" + b + "]"}) {
				return fmt.Sprint(got)
			}
			return ""
		})
		g.check(w, "with "+a+" and "+b)
	}
	// Changes that the next process finds, in any order: each takes the address of the other.
	for _, addresses := range [][]string{{"172.30.0.211", "172.30.0.210"}, {"172.30.0.210", "172.30.0.211"}} {
		w.process.Stop()
		exchange(addresses[0], addresses[1])
		w.run()
		applied(addresses[0], addresses[1])
	}
	// The owners of deleted objects are found after the others.
	w.process.Stop()
	w.Delete(one)
	w.Get(two)
	w.Change(two, func() { two.Spec.Addresses = []string{"172.30.0.210"} })
	w.run()
	w.Eventually(func() string {
		if w.Get(two); !slices.Equal(two.Status.Addresses, two.Spec.Addresses) {
			return fmt.Sprint(two.Status.Addresses)
		}
		return ""
	})
	g.check(w, "after a deletion")
	w.Ready(two)
}
