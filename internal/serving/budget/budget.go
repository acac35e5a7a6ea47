// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package budget bounds the costs of the objects of tenants: of each object, and of all objects of a group, such as a namespace.
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
	// objectExceeded and groupExceeded count the objects with these verdicts.
	objectExceeded, groupExceeded int
}

// group holds the objects of a group that are within the bound of an object, the oldest first.
type group struct {
	list  []*Object
	total int
	limit *Object // the oldest object that exceeds the bound: all younger ones exceed it, too. It is nil if all are within the bound.
}

// Set records an object. It returns its verdict, and the other objects whose verdicts have changed.
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
		b.countExceeded(bounds, old, -1)
	}
	if o.Cost > 0 {
		if b.objects == nil {
			b.objects, b.groups = map[types.NamespacedName]Object{}, map[string]*group{}
		}
		b.objects[o.Key] = o
		b.countExceeded(bounds, o, 1)
		others = symmetricDifference(others, b.change(bounds, o, (*group).insert))
	}
	others = slices.DeleteFunc(others, func(key types.NamespacedName) bool { return key == o.Key })
	return b.verdict(bounds, o), others
}

// Verdict returns the verdict of a recorded object.
func (b *Budget) Verdict(bounds Bounds, key types.NamespacedName) Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.verdict(bounds, b.objects[key])
}

// Refused is the number of objects that are not admitted.
func (b *Budget) Refused() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.objectExceeded + b.groupExceeded
}

func (b Bounds) exceeded(o Object) bool { return b.Object > 0 && o.Cost > b.Object }

func (b *Budget) countExceeded(bounds Bounds, o Object, n int) {
	if bounds.exceeded(o) {
		b.objectExceeded += n
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

// change inserts an object into its group, or removes it, and returns the objects whose verdicts have changed.
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
	b.groupExceeded -= g.beyond()
	do(g, &o)
	g.limit = g.findLimit(bounds.Group)
	b.groupExceeded += g.beyond()
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

// findLimit returns the oldest object that exceeds the bound, or nil. It reads no object younger than that.
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

// from returns the index of the first object that is not older than o, or the number of objects if o is nil.
func (g *group) from(o *Object) int {
	if o == nil {
		return len(g.list)
	}
	i, _ := slices.BinarySearchFunc(g.list, o, (*Object).compare)
	return i
}

// beyond returns how many objects exceed the bound.
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

// symmetricDifference returns the objects in exactly one of two lists: the verdict of an object in both has changed twice.
func symmetricDifference(a, b []types.NamespacedName) []types.NamespacedName {
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
