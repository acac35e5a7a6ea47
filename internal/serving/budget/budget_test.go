// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/serving/budget"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

var bounds = budget.Bounds{Object: 400, Group: 1000}

func object(name, group string, created int64, cost int) budget.Object {
	return budget.Object{Key: types.NamespacedName{Namespace: "ns", Name: name}, Group: group, Created: time.Unix(created, 0), Cost: cost}
}

func TestTheOldestObjectsAreWithinTheBound(t *testing.T) {
	var b budget.Budget
	for _, step := range []struct {
		name    string
		object  budget.Object
		verdict budget.Verdict
		others  string
		refused int
	}{
		{"the first", object("b", "g", 2, 400), budget.Within, "[]", 0},
		{"one that is too large counts nothing", object("a", "g", 1, 401), budget.ObjectExceeded, "[]", 1},
		{"a younger one", object("d", "g", 4, 400), budget.Within, "[]", 1},
		{"the youngest does not fit", object("e", "g", 5, 201), budget.GroupExceeded, "[]", 2},
		{"it fits once it is smaller", object("e", "g", 5, 200), budget.Within, "[]", 1},
		{"another group", object("f", "h", 6, 400), budget.Within, "[]", 1},
		{"an older one excludes the youngest", object("c", "g", 3, 10), budget.Within, "[ns/e]", 2},
		{"the large one becomes smaller, and excludes the youngest but one", object("a", "g", 1, 200), budget.Within, "[ns/d]", 2},
		{"of one second the name decides", object("bb", "g", 2, 300), budget.Within, "[]", 2},
		{"a group is left", object("b", "h", 2, 400), budget.Within, "[ns/d]", 1},
		{"a deletion", object("bb", "g", 2, 0), budget.Within, "[ns/e]", 0},
	} {
		verdict, others := b.Set(bounds, step.object)
		if verdict != step.verdict || fmt.Sprint(others) != step.others || b.Refused() != step.refused {
			t.Errorf("%s: verdict %d, others %v, %d refused; want %d, %s, %d", step.name, verdict, others, b.Refused(), step.verdict, step.others, step.refused)
		}
		if again, others := b.Set(bounds, step.object); again != verdict || len(others) > 0 || b.Verdict(bounds, step.object.Key) != verdict {
			t.Errorf("%s: the same again: verdict %d, others %v", step.name, again, others)
		}
	}
}

// TestBudgetAgreesWithTheModel makes random changes of objects. It compares which of them are within the bounds, and which are returned as
// changed, with a sum over all older objects.
func TestBudgetAgreesWithTheModel(t *testing.T) {
	seed.Histories(t, nil, 20, func(t *testing.T, _ uint64, random *rand.Rand) {
		var b budget.Budget
		objects := map[types.NamespacedName]budget.Object{}
		known := map[types.NamespacedName]budget.Verdict{} // by the last result of Set
		older := func(a, b budget.Object) bool {
			return a.Created.Before(b.Created) || a.Created.Equal(b.Created) && a.Key.Name <= b.Key.Name
		}
		verdict := func(o budget.Object) budget.Verdict {
			if o.Cost > bounds.Object {
				return budget.ObjectExceeded
			}
			total := 0
			for _, other := range objects {
				if other.Group == o.Group && other.Cost <= bounds.Object && older(other, o) {
					total += other.Cost
				}
			}
			if total > bounds.Group {
				return budget.GroupExceeded
			}
			return budget.Within
		}
		for step := range 300 {
			o := object(fmt.Sprint("p", random.IntN(12)), fmt.Sprint("g", random.IntN(2)), random.Int64N(4), random.IntN(bounds.Object*5/4))
			if old, ok := objects[o.Key]; ok && random.IntN(3) > 0 {
				o.Created, o.Group = old.Created, old.Group // the same object
			}
			if random.IntN(4) == 0 {
				o.Cost = 0
			}
			if objects[o.Key] = o; o.Cost == 0 {
				delete(objects, o.Key)
			}
			itself, others := b.Set(bounds, o)
			for _, other := range others {
				if other == o.Key || known[other] == verdict(objects[other]) {
					t.Fatalf("step %d: %v is returned, and its verdict is %d as before", step, other, known[other])
				}
				known[other] = verdict(objects[other])
			}
			if known[o.Key] = itself; o.Cost == 0 {
				delete(known, o.Key)
			}
			refused := 0
			for key, believed := range known {
				if want := verdict(objects[key]); believed != want || b.Verdict(bounds, key) != want {
					t.Fatalf("step %d: %v: verdict %d, want %d", step, key, believed, want)
				}
				if believed != budget.Within {
					refused++
				}
			}
			if b.Refused() != refused {
				t.Fatalf("step %d: %d refused, want %d", step, b.Refused(), refused)
			}
		}
	})
}

// BenchmarkSet records the objects of a group that are far beyond its bound.
func BenchmarkSet(b *testing.B) {
	for b.Loop() {
		var all budget.Budget
		for i := range 20_000 {
			all.Set(budget.Bounds{Group: 1 << 20}, object(fmt.Sprint(i), "g", int64(20_000-i), 64))
		}
	}
}
