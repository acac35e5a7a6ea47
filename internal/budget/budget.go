// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package budget bounds what the objects of one tenant cost on nodes: each object, and all of a group, such as a namespace.
package budget

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Bounds are the highest costs that are admitted.
type Bounds struct {
	// Object is the bound of each object; 0 for none.
	Object int
	// Group is the bound of the sum over a group.
	Group int
}

// Object is one object with its cost.
type Object struct {
	Key     types.NamespacedName
	Group   string
	Created time.Time
	// Cost is 0 for an object that does not exist, or costs nothing.
	Cost int
}

func (o *Object) compare(other *Object) int {
	return cmp.Or(o.Created.Compare(other.Created), cmp.Compare(o.Key.Namespace, other.Key.Namespace), cmp.Compare(o.Key.Name, other.Key.Name))
}

// Verdict says whether an object is admitted.
type Verdict int

const (
	// Within is for an object within the bounds.
	Within Verdict = iota
	// ObjectExceeded is for an object that exceeds the bound of an object. It does not count in its group.
	ObjectExceeded
	// GroupExceeded is for an object that exceeds the bound of its group, together with all older objects of the group.
	GroupExceeded
)

// Budget adds up the costs of objects by group. An object is within the bound of its group when the sum of its cost and the costs of all older
// objects is. So a new or larger object never excludes an older one, and a deletion never excludes any. The zero value is empty.
type Budget struct {
	mu      sync.Mutex
	objects map[types.NamespacedName]Object
	groups  map[string]*group
	large   int // objects that exceed the bound of an object
	young   int // objects that exceed the bound of their group
}

// group holds the objects of a group that are within the bound of an object, the oldest first.
type group struct {
	list  []*Object
	total int
	limit *Object // the oldest one that is not within the bound: neither is any that is younger. It is nil when all are.
}

// Set records an object. It returns whether it is admitted, and the other objects for which that has changed.
func (b *Budget) Set(bounds Bounds, o Object) (verdict Verdict, others []types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, known := b.objects[o.Key]
	if known && old.Group == o.Group && old.Cost == o.Cost && old.Created.Equal(o.Created) {
		return b.verdict(bounds, o), nil
	}
	if known {
		others = b.change(bounds, old, (*group).remove)
		delete(b.objects, o.Key)
		b.countLarge(bounds, old, -1)
	}
	if o.Cost > 0 {
		if b.objects == nil {
			b.objects, b.groups = map[types.NamespacedName]Object{}, map[string]*group{}
		}
		b.objects[o.Key] = o
		b.countLarge(bounds, o, 1)
		others = flips(others, b.change(bounds, o, (*group).insert))
	}
	others = slices.DeleteFunc(others, func(key types.NamespacedName) bool { return key == o.Key })
	return b.verdict(bounds, o), others
}

// Verdict returns whether a recorded object is admitted.
func (b *Budget) Verdict(bounds Bounds, key types.NamespacedName) Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.verdict(bounds, b.objects[key])
}

// Refused is the number of objects that are not admitted.
func (b *Budget) Refused() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.large + b.young
}

func (b Bounds) exceeded(o Object) bool { return b.Object > 0 && o.Cost > b.Object }

func (b *Budget) countLarge(bounds Bounds, o Object, n int) {
	if bounds.exceeded(o) {
		b.large += n
	}
}

func (b *Budget) verdict(bounds Bounds, o Object) Verdict {
	g := b.groups[o.Group]
	switch {
	case bounds.exceeded(o):
		return ObjectExceeded
	case g == nil || o.Cost == 0 || g.limit == nil || o.compare(g.limit) < 0:
		return Within
	}
	return GroupExceeded
}

// change inserts an object into its group, or removes it, and returns the objects for which the answer has changed.
func (b *Budget) change(bounds Bounds, o Object, do func(*group, *Object)) []types.NamespacedName {
	if bounds.exceeded(o) {
		return nil
	}
	g := b.groups[o.Group]
	if g == nil {
		g = &group{}
		b.groups[o.Group] = g
	}
	before := g.limit
	b.young -= g.beyond()
	do(g, &o)
	g.limit = g.findLimit(bounds.Group)
	b.young += g.beyond()
	if len(g.list) == 0 {
		delete(b.groups, o.Group)
	}
	return g.between(before, g.limit)
}

func (g *group) insert(o *Object) {
	i, _ := slices.BinarySearchFunc(g.list, o, (*Object).compare)
	g.list = slices.Insert(g.list, i, o)
	g.total += o.Cost
}

func (g *group) remove(o *Object) {
	if i, found := slices.BinarySearchFunc(g.list, o, (*Object).compare); found {
		g.list = slices.Delete(g.list, i, i+1)
		g.total -= o.Cost
	}
}

// findLimit goes through the objects within the bound only.
func (g *group) findLimit(bound int) *Object {
	if g.total <= bound {
		return nil
	}
	sum := 0
	for _, o := range g.list {
		if sum += o.Cost; sum > bound {
			return o
		}
	}
	return nil
}

// from is the index of the first object that is not older than o; the number of objects for nil.
func (g *group) from(o *Object) int {
	if o == nil {
		return len(g.list)
	}
	i, _ := slices.BinarySearchFunc(g.list, o, (*Object).compare)
	return i
}

func (g *group) beyond() int { return len(g.list) - g.from(g.limit) }

// between returns the objects from the older of two limits to the younger one.
func (g *group) between(a, b *Object) []types.NamespacedName {
	from, to := g.from(a), g.from(b)
	if from > to {
		from, to = to, from
	}
	var keys []types.NamespacedName
	for _, o := range g.list[from:to] {
		keys = append(keys, o.Key)
	}
	return keys
}

// flips returns the objects that are in one of two lists: the answer for one in both has changed twice.
func flips(a, b []types.NamespacedName) []types.NamespacedName {
	twice := map[types.NamespacedName]bool{}
	for _, key := range a {
		twice[key] = false
	}
	var out []types.NamespacedName
	for _, key := range b {
		if _, there := twice[key]; there {
			twice[key] = true
		} else {
			out = append(out, key)
		}
	}
	for _, key := range a {
		if !twice[key] {
			out = append(out, key)
		}
	}
	return out
}
