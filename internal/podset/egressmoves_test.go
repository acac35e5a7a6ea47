// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import (
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// TestAFormerSetIsKeptUntilItsPodsHaveMoved: a user is complete after the rows of pods that others have now are without its former sets.
func TestAFormerSetIsKeptUntilItsPodsHaveMoved(t *testing.T) {
	older, younger := desired.Owner{Kind: "EgressAddress", Name: "a"}, desired.Owner{Kind: "EgressAddress", Name: "b"}
	all := Selector{Role: Egress, Owner: "1/a", Vpc: "v"}
	others := Selector{Role: Egress, Owner: "2/b", Vpc: "v"}
	web := Selector{Role: Egress, Owner: "1/a", Vpc: "v", Pods: "app=web"}
	again := Selector{Role: Egress, Owner: "3/a", Vpc: "v"}
	for _, tt := range []struct {
		name   string
		next   []Selector
		labels map[string]string // of the pod, from then on
		alone  bool              // the younger owner does not exist
		want   []Selector        // that the pod is in before Settle
		waits  bool              // for the pod
	}{
		{"deleted", nil, nil, false, []Selector{others}, true},
		{"deleted, without others", nil, nil, true, nil, false},
		{"deleted, and the pod has other labels", nil, map[string]string{"app": "x"}, false, []Selector{others}, true},
		{"narrowed", []Selector{web}, nil, false, []Selector{others}, true},
		{"narrowed, without others", []Selector{web}, nil, true, nil, false},
		{"recreated", []Selector{again}, nil, true, []Selector{all, again}, true},
		{"recreated, and younger now", []Selector{again}, nil, false, []Selector{others}, true},
		{"unchanged", []Selector{all}, nil, false, []Selector{all}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x, key, reported := New(), keyOf("n", "p"), 0
			x.Observe(func(c Changes) {
				if slices.Contains(c.Complete, older) {
					reported++
				}
			})
			x.SetNamespace("n", nil)
			x.Use(older, []Selector{all})
			if !tt.alone {
				x.Use(younger, []Selector{others})
			}
			x.SetPod(Pod{Key: key, Vpc: "v", Labels: map[string]string{"app": "db"}})
			x.Applied(key, x.Membership(key).Revision)
			x.Settle(older)

			x.Use(older, tt.next)
			if tt.labels != nil {
				x.SetPod(Pod{Key: key, Vpc: "v", Labels: tt.labels})
			}
			if complete := x.Complete(older); complete == tt.waits {
				t.Errorf("before the row of the pod is committed, complete is %v", complete)
			}
			var got []Selector
			m := x.Membership(key)
			for _, part := range m.Parts {
				got = append(got, part.Selector)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("the pod is in %v, want %v", got, tt.want)
			}
			x.Applied(key, m.Revision)
			if !x.Complete(older) || reported > 0 != tt.waits {
				t.Errorf("after the row of the pod is committed, complete is %v, reported %d times", x.Complete(older), reported)
			}
			x.Settle(older)
			if used := x.UsedBy(older); len(used) != len(tt.next) {
				t.Errorf("it still uses %v", used)
			}
		})
	}
}

// TestSetsThatWereNeverCompleteAreKept: their pods may be in the database.
func TestSetsThatWereNeverCompleteAreKept(t *testing.T) {
	x, owner, key := New(), desired.Owner{Kind: "EgressAddress", Name: "a"}, keyOf("n", "p")
	first, second, third := Selector{Role: Egress, Owner: "1/a", Vpc: "v", Pods: "app=x"}, Selector{Role: Egress, Owner: "1/a", Vpc: "v"}, Selector{Role: Egress, Owner: "1/a", Vpc: "v", Pods: "app=y"}
	other := Selector{Role: Egress, Owner: "2/b", Vpc: "v"}
	x.SetNamespace("n", nil)
	x.SetPod(Pod{Key: key, Vpc: "v"})
	x.Use(desired.Owner{Kind: "EgressAddress", Name: "b"}, []Selector{other})
	x.Use(owner, []Selector{first})
	x.Settle(owner)
	x.Use(owner, []Selector{second})
	x.Applied(key, x.Membership(key).Revision)
	x.Use(owner, []Selector{third})
	if used := x.UsedBy(owner); len(used) != 3 || x.Complete(owner) {
		t.Errorf("it uses %v, and is complete: %v", used, x.Complete(owner))
	}
	x.Applied(key, x.Membership(key).Revision)
	if !x.Complete(owner) {
		t.Error("it is not complete")
	}
}

// has reports whether a set of Egress has the pods of an owner.
func (m *model) has(first string, s Selector) bool {
	return s.Owner == first || m.leaving(s) && NameOf(s.Owner) == NameOf(first)
}

func (m *model) leaving(s Selector) bool {
	for _, selectors := range m.used {
		if slices.Contains(selectors, s) {
			return false
		}
	}
	return true
}
