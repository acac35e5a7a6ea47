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
				x.Lead([]Selector{others})
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
	x.Lead([]Selector{other})
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

// TestAPodKeepsItsFormerSetUntilTheNextOneIsLed: no policy of the next owner is for the pod before.
func TestAPodKeepsItsFormerSetUntilTheNextOneIsLed(t *testing.T) {
	older, younger := desired.Owner{Kind: "EgressAddress", Name: "a"}, desired.Owner{Kind: "EgressAddress", Name: "b"}
	first := Selector{Role: Egress, Owner: "1/a", Vpc: "v", Pods: "app=db"}
	wider := Selector{Role: Egress, Owner: "1/a", Vpc: "v", Pods: "app in (db,web)"}
	others := Selector{Role: Egress, Owner: "2/b", Vpc: "v", Pods: "app=web"}
	for name, change := range map[string]func(x *Index, p Pod){
		"taken by an older owner": func(x *Index, _ Pod) { x.Use(older, []Selector{wider}) },
		"and its owner is deleted": func(x *Index, _ Pod) {
			x.Use(older, []Selector{wider})
			x.Use(younger, nil)
		},
		"with another label": func(x *Index, p Pod) {
			x.Use(older, []Selector{wider})
			x.Use(younger, nil)
			p.Labels = map[string]string{"app": "db"}
			x.SetPod(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := New()
			p := Pod{Key: keyOf("n", "p"), Vpc: "v", Labels: map[string]string{"app": "web"}}
			x.SetNamespace("n", nil)
			x.Use(younger, []Selector{others})
			x.Lead([]Selector{others})
			x.Settle(younger)
			x.Use(older, []Selector{first})
			x.Settle(older)
			x.SetPod(p)
			commit := func() { x.Applied(p.Key, x.Membership(p.Key).Revision) }
			in := func() (sets []string) {
				for _, part := range x.Membership(p.Key).Parts {
					sets = append(sets, part.Owner+" "+part.Pods)
				}
				slices.Sort(sets)
				return sets
			}
			commit()
			change(x, p)
			commit()
			if got := in(); !slices.Contains(got, "2/b app=web") || !slices.Contains(got, "1/a app in (db,web)") {
				t.Errorf("before the packets are led, the pod is in %q", got)
			}
			if of, _ := x.Membership(p.Key).EgressOf(); of != wider && of != first {
				t.Errorf("the pod is of %v", of)
			}
			if x.Complete(younger) {
				t.Error("the former owner is complete, and the pod is in its set")
			}
			x.Lead([]Selector{wider})
			if got := in(); slices.Contains(got, "2/b app=web") {
				t.Errorf("afterwards the pod is in %q", got)
			}
			if x.Complete(younger) {
				t.Error("the former owner is complete, and the row of the pod is not committed")
			}
			commit()
			if !x.Complete(younger) {
				t.Error("the former owner is not complete")
			}
		})
	}
}

// TestSetsOfAFormerProcess: their pods are known by the database, and leave them as they would have left in that process.
func TestSetsOfAFormerProcess(t *testing.T) {
	out, other := desired.Owner{Kind: "EgressAddress", Name: "out"}, desired.Owner{Kind: "EgressAddress", Name: "other"}
	next, others := Selector{Role: Egress, Owner: "5/out", Vpc: "v", Pods: "app=web"}, Selector{Role: Egress, Owner: "6/other", Vpc: "v", Pods: "app=db"}
	former := Selector{Role: Egress, Owner: "/out", Former: "f"}
	web, db, none := keyOf("n", "web"), keyOf("n", "db"), keyOf("n", "none")
	for _, tt := range []struct {
		name  string
		led   map[desired.Owner]map[string][]Key
		uses  []Selector // of out
		want  map[Key][]Selector
		waits bool // out waits for the pod db
	}{
		{
			"a changed selector", map[desired.Owner]map[string][]Key{out: {"f": {web, db, none}}, other: {others.Name(): nil}}, []Selector{next},
			map[Key][]Selector{web: {former, next}, db: {others}, none: nil}, true,
		},
		{
			"a deleted owner", map[desired.Owner]map[string][]Key{out: {"f": {db, none}}, other: {others.Name(): nil}}, nil,
			map[Key][]Selector{web: nil, db: {others}, none: nil}, true,
		},
		{
			"an owner whose packets are not led", map[desired.Owner]map[string][]Key{out: {"f": {db}}}, nil,
			map[Key][]Selector{db: {former, others}}, true,
		},
		{
			"pods with other labels since", map[desired.Owner]map[string][]Key{out: {next.Name(): {web, db}}}, []Selector{next},
			map[Key][]Selector{web: {next}, db: {next, others}}, true,
		},
		{
			"no former set", map[desired.Owner]map[string][]Key{out: {next.Name(): {web}}, other: {others.Name(): {db}}}, []Selector{next},
			map[Key][]Selector{web: {next}, db: {others}, none: nil}, false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := New()
			w := World{Namespaces: map[string]map[string]string{"n": nil}, Connected: map[Key]bool{}, Led: tt.led, Uses: map[desired.Owner][]Selector{other: {others}}}
			if tt.uses != nil {
				w.Uses[out] = tt.uses
			}
			for _, key := range []Key{web, db, none} {
				w.Pods = append(w.Pods, Pod{Key: key, Vpc: "v", Labels: map[string]string{"app": key.Name}})
				w.Connected[key] = true
			}
			if err := x.Load(func() (World, error) { return w, nil }); err != nil {
				t.Fatal(err)
			}
			for key, want := range tt.want {
				var got []Selector
				for _, part := range x.Membership(key).Parts {
					got = append(got, part.Selector)
				}
				if len(got) != len(want) || slices.ContainsFunc(want, func(s Selector) bool { return !slices.Contains(got, s) }) {
					t.Errorf("pod %s is in %v, want %v", key.Name, got, want)
				}
			}
			x.Use(out, tt.uses)
			x.Applied(web, x.Membership(web).Revision)
			if x.Complete(out) == tt.waits {
				t.Errorf("before the row of the pod db is committed, complete is %v", !tt.waits)
			}
			x.Lead([]Selector{others, next})
			x.Applied(db, x.Membership(db).Revision)
			if !x.Complete(out) {
				t.Error("it is not complete afterwards")
			}
			x.Settle(out)
			if used := x.UsedBy(out); len(used) != len(tt.uses) {
				t.Errorf("it still uses %v", used)
			}
			if s, known := x.Lookup("f"); known {
				t.Errorf("%v is still in use", s)
			}
		})
	}
}

// TestUsersAreNotifiedOfStalledPorts: such ports alone do not end.
func TestUsersAreNotifiedOfStalledPorts(t *testing.T) {
	x, older, younger := New(), desired.Owner{Kind: "EgressAddress", Name: "a"}, desired.Owner{Kind: "EgressAddress", Name: "b"}
	all, others := Selector{Role: Egress, Owner: "1/a", Vpc: "v"}, Selector{Role: Egress, Owner: "2/b", Vpc: "v"}
	bad, good := keyOf("n", "bad"), keyOf("n", "good")
	notified := 0
	x.Observe(func(c Changes) {
		if slices.Contains(c.Complete, older) {
			notified++
		}
	})
	x.SetNamespace("n", nil)
	x.Use(older, []Selector{all})
	x.Use(younger, []Selector{others})
	x.Lead([]Selector{all, others})
	commit := func(key Key) { x.Applied(key, x.Membership(key).Revision) }
	for _, key := range []Key{bad, good} {
		x.SetPod(Pod{Key: key, Vpc: "v"})
		commit(key)
	}
	x.Settle(older)
	x.Use(older, nil)
	x.Stall(bad)
	x.Stall(bad)
	if x.Complete(older) || x.Stalled(older) || notified != 1 {
		t.Errorf("with a port that is not stalled: complete %v, stalled %v, notified %d times", x.Complete(older), x.Stalled(older), notified)
	}
	commit(good)
	if x.Complete(older) || !x.Stalled(older) || notified != 2 {
		t.Errorf("with stalled ports only: complete %v, stalled %v, notified %d times", x.Complete(older), x.Stalled(older), notified)
	}
	commit(bad)
	if !x.Complete(older) || x.Stalled(older) || notified != 3 {
		t.Errorf("at the end: complete %v, stalled %v, notified %d times", x.Complete(older), x.Stalled(older), notified)
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
