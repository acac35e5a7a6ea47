// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestStatesOfAbsentPods(t *testing.T) {
	var s states
	port := func(owner string) kubeovnv1.Port { return kubeovnv1.NewPort("shop", owner, kubeovnv1.ProviderOVN) }
	first, second, alone := port("db-0"), port("db-1"), kubeovnv1.Port{Name: "web.shop"}
	s.put(absent{port: first, state: Retained, podType: kubeovnv1.PodTypeStatefulSet})
	s.put(absent{port: second, state: Retained, podType: kubeovnv1.PodTypeStatefulSet})
	s.put(absent{port: second, state: Reserved}) // its StatefulSet was deleted, and a user's reservation has the address
	s.put(absent{port: alone, state: Reserved})
	if got := s.ofSet(types.NamespacedName{Namespace: "shop", Name: "db"}); len(got) != 2 {
		t.Errorf("of the set: %v", got)
	}
	if got := s.ofType(kubeovnv1.PodTypeStatefulSet); !slices.Equal(got, []types.NamespacedName{first.Key()}) {
		t.Errorf("of StatefulSets: %v", got)
	}
	if n := s.retainedIn("shop"); n != 1 {
		t.Errorf("%d allocations are retained for workloads, want the one of db-0", n)
	}
	if got := s.of(second.Name).state; got != Reserved {
		t.Errorf("a reservation has state %d", got)
	}
	if _, changed := s.record(first.Name); !changed || !s.of(first.Name).recorded {
		t.Error("the record of an allocation is lost")
	}
	if _, changed := s.record(first.Name); changed {
		t.Error("a second record is a change")
	}
	for _, p := range []kubeovnv1.Port{first, second, alone} {
		if !s.forget(p.Name) {
			t.Errorf("%s is unknown", p.Name)
		}
	}
	if len(s.allocations)+len(s.byOwner)+len(s.forWorkloads) != 0 {
		t.Errorf("left behind: %v %v", s.allocations, s.byOwner)
	}
}

// The table has a state for each event in each state, and an allocation without addresses never becomes retained.
func TestTheTableOfStatesIsComplete(t *testing.T) {
	for e := gained; e <= ended; e++ {
		for before := Free; before <= Reserved; before++ {
			after, ok := next[e][before]
			if !ok {
				t.Errorf("event %d in state %d has no next state", e, before)
			}
			if before == Free && after == Retained {
				t.Errorf("event %d retains an allocation without addresses", e)
			}
		}
	}
}
