// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"slices"
	"sync"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

// holdings are the elements that owners have in the database by the last commit of this process. Before an owner's first one, it is unknown: sets that contain
// a value which its rows record may contain it because of this owner. The first Apply removes the value from all sets that the owner does not want.
//
// A set's value without a holder is a leftover (orphans of index).
type holdings struct {
	mu sync.Mutex
	of map[desired.Owner][]element // the known owners
	by map[element][]desired.Owner
	// promised are elements that the transaction under way adds: they are no leftovers when the replica receives them.
	promised map[element]struct{}
}

func newHoldings() *holdings {
	return &holdings{of: map[desired.Owner][]element{}, by: map[element][]desired.Owner{}, promised: map[element]struct{}{}}
}

// holding are the elements of an owner.
type holding struct {
	known    bool
	elements []element
}

// holding are the elements that the owner of these rows has. Owners whose rows record no value are not remembered.
func (w wantedRows) holding() holding {
	return holding{slices.ContainsFunc(w.rows, func(w wantedRow) bool { return len(w.records) > 0 }), w.elements}
}

// set stores the elements of an owner. The caller has the lock.
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

func (h *holdings) known(owner desired.Owner) bool {
	_, known := h.of[owner]
	return known
}

// committed makes the wanted elements of requests those of their owners.
func (h *holdings) committed(requests []*request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range requests {
		h.set(r.owner, r.wanted.holding())
	}
}

// forget makes the owners of requests unknown: it is not known which of their transactions were committed.
func (h *holdings) forget(requests []*request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range requests {
		h.set(r.owner, holding{})
	}
}

// forgetAll makes all owners unknown: another process may have written.
func (h *holdings) forgetAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.of)
	clear(h.by)
}

// answered ends the transaction under way.
func (h *holdings) answered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.promised)
}

// promise precedes a transaction. An unknown owner has what it may have from now on, so that no value that it begins to record hides a leftover.
func (x *index) promise(r *ovsdbclient.Replica, of *request) {
	h := x.holdings
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.known(of.owner) {
		h.set(of.owner, holding{true, x.former(r, of.owner)})
	}
	for _, e := range of.wanted.elements {
		h.promised[e] = struct{}{}
	}
}

// recorded returns the owners with rows that record the value of an element, once for each row.
func (x *index) recorded(e element) []desired.Owner {
	if own := x.recorders[e]; len(own) > 0 {
		return slices.Concat(own, x.recorders[element{value: e.value}])
	}
	return x.recorders[element{value: e.value}]
}

// recordsOf are the keys in recorders of a row: an address set has values of its own in itself only, another row in any set.
func recordsOf(id rowID, model any) []element {
	values := recordedValues(model)
	if len(values) == 0 {
		return nil
	}
	keys := make([]element, 0, len(values))
	for _, value := range values {
		key := element{value: value}
		if columns := ovsdbclient.Shared[id.table]; id.table == desired.TableAddressSet {
			key.set = ovsdbclient.SetID{Table: id.table, Column: columns[0], UUID: id.uuid}
		}
		keys = append(keys, key)
	}
	return keys
}

// held reports whether an element has, or may have, a holder with a row that records the value, or gets one.
func (x *index) held(e element) bool {
	x.holdings.mu.Lock()
	defer x.holdings.mu.Unlock()
	_, promised := x.holdings.promised[e]
	return promised || slices.ContainsFunc(x.recorded(e), func(owner desired.Owner) bool {
		return !x.holdings.known(owner) || slices.Contains(x.holdings.by[e], owner)
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
	return slices.Contains(x.recorded(e), owner) && (!x.holdings.known(owner) || slices.Contains(x.holdings.by[e], owner))
}

// former returns the elements that an owner has: for an unknown owner, all that it may have in sets of the engine. The caller has the lock of holdings.
func (x *index) former(r *ovsdbclient.Replica, owner desired.Owner) []element {
	if x.holdings.known(owner) {
		return x.holdings.of[owner]
	}
	var elements []element
	seen := map[element]bool{}
	add := func(e element) {
		if !seen[e] {
			seen[e] = true
			elements = append(elements, e)
		}
	}
	for _, id := range x.rows(owner) {
		for _, key := range recordsOf(id, r.Row(id.table, id.uuid)) {
			for _, set := range r.Within(key.value) {
				_, ours := identify(set.ID.UUID, r.Row(set.ID.Table, set.ID.UUID))
				if ours && !set.Refers && (key.set == ovsdbclient.SetID{} || key.set == set.ID) {
					add(element{set: set.ID, value: key.value})
				}
			}
		}
	}
	return elements
}
