// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"slices"
	"sync"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

// holdings are the elements that owners have in the database by their last Apply of this process. Before the first one, an owner is unknown: the sets that contain
// a value which its rows record may contain it because of this owner, so no other owner removes the value from them. The first Apply removes the value from all sets
// that the owner does not want.
type holdings struct {
	mu sync.Mutex
	of map[desired.Owner][]element // the known owners of rows that record values
	by map[element][]desired.Owner
}

func newHoldings() *holdings {
	return &holdings{of: map[desired.Owner][]element{}, by: map[element][]desired.Owner{}}
}

// holding are the elements of an owner.
type holding struct {
	known    bool
	elements []element
}

// set stores the elements of an owner that are in the database. The caller has the lock.
func (h *holdings) set(owner desired.Owner, now holding) {
	before, known := h.of[owner]
	if known == now.known && slices.Equal(before, now.elements) {
		return
	}
	for _, e := range before {
		rest := slices.DeleteFunc(h.by[e], func(other desired.Owner) bool { return other == owner })
		if h.by[e] = rest; len(rest) == 0 {
			delete(h.by, e)
		}
	}
	if !now.known {
		delete(h.of, owner)
		return
	}
	h.of[owner] = now.elements
	for _, e := range now.elements {
		h.by[e] = append(h.by[e], owner)
	}
}

// holding are the elements that the owner of these rows has.
func (w wantedRows) holding() holding {
	return holding{slices.ContainsFunc(w.rows, func(w wantedRow) bool { return len(w.records) > 0 }), w.elements}
}

// committed makes the wanted elements those of the owner.
func (h *holdings) committed(r *request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set(r.owner, r.wanted.holding())
	r.former = nil
}

// restore undoes promise.
func (h *holdings) restore(r *request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.former != nil {
		h.set(r.owner, *r.former)
	}
}

// forget makes all owners unknown: another process may have written since.
func (h *holdings) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.of)
	clear(h.by)
}

// known is false for owners whose rows record no value, too.
func (h *holdings) known(owner desired.Owner) bool {
	_, known := h.of[owner]
	return known
}

// promise adds the elements that the transaction of a request adds, so that they are not taken for leftovers when the replica receives them.
func (x *index) promise(r *ovsdbclient.Replica, of *request) {
	h := x.holdings
	h.mu.Lock()
	defer h.mu.Unlock()
	if of.former == nil {
		of.former = &holding{h.known(of.owner), h.of[of.owner]}
	}
	union := slices.Clone(x.former(r, of.owner))
	for _, e := range of.wanted.elements {
		if !slices.Contains(union, e) {
			union = append(union, e)
		}
	}
	if len(union) > 0 {
		h.set(of.owner, holding{true, union})
	}
}

// held reports whether an element has, or may have, a holder with a row that records the value.
func (x *index) held(e element) bool {
	x.holdings.mu.Lock()
	defer x.holdings.mu.Unlock()
	return x.heldExcept(e, nil)
}

// heldExcept is held for other owners than some. The caller has the lock of holdings.
func (x *index) heldExcept(e element, some []desired.Owner) bool {
	return slices.ContainsFunc(x.recorders[e.value], func(owner desired.Owner) bool {
		return !slices.Contains(some, owner) && (!x.holdings.known(owner) || slices.Contains(x.holdings.by[e], owner))
	})
}

// holders returns the owners that hold an element.
func (x *index) holders(e element) []desired.Owner {
	x.holdings.mu.Lock()
	defer x.holdings.mu.Unlock()
	return slices.Clone(x.holdings.by[e])
}

// holds reports whether an owner has an element that is in its set. The caller has the lock of holdings.
func (x *index) holds(owner desired.Owner, e element) bool {
	return x.records(owner, e.value) && (!x.holdings.known(owner) || slices.Contains(x.holdings.by[e], owner))
}

// former returns the elements that an owner has: for an unknown owner, all that it may have. The caller has the lock of holdings.
func (x *index) former(r *ovsdbclient.Replica, owner desired.Owner) []element {
	if x.holdings.known(owner) {
		return x.holdings.of[owner]
	}
	var elements []element
	for _, id := range x.rows(owner) {
		for _, value := range recordedValues(r.Row(id.table, id.uuid)) {
			for _, set := range r.Within(value) {
				if e := (element{set: set.ID, value: value}); !set.Refers && !slices.Contains(elements, e) {
					elements = append(elements, e)
				}
			}
		}
	}
	return elements
}
