// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"slices"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// index finds rows by owner, and owners by the values they record. The session's lock guards it: it changes only together with
// the replica. Holdings have a lock of their own.
type index struct {
	owners    map[string]map[desired.Owner][]rowID // by kind
	recorders map[element][]desired.Owner          // by recordsOf: the owners of rows that record it, once for each row
	// orphans are values in sets of strings that no owner holds: leftovers of a row that was deleted with its parent, or values
	// that another client wrote.
	orphans      map[ovsdbclient.SetID]map[string]struct{}
	incarnations incarnations
	holdings     *holdings
}

// effects is the result of a replica update for owners.
type effects struct {
	touched []desired.Owner // a row of the owner, or a set membership of one, changed
	arrived []rowID         // rows that are new in the replica
	global  *nb.NBGlobal    // NB_Global, when it changed
}

func newIndex() *index {
	return &index{
		owners: map[string]map[desired.Owner][]rowID{}, recorders: map[element][]desired.Owner{}, orphans: map[ovsdbclient.SetID]map[string]struct{}{},
		incarnations: newIncarnations(), holdings: newHoldings(),
	}
}

// update applies one update of the replica to the index.
func (x *index) update(r *ovsdbclient.Replica, u ovsdbclient.Update) effects {
	var fx effects
	for _, change := range u.Rows {
		fx.follow(change)
		if change.Table == nb.NBGlobalTable {
			fx.global, _ = change.New.(*nb.NBGlobal)
			continue
		}
		if change.Old == nil {
			fx.arrived = append(fx.arrived, rowID{table: change.Table, uuid: change.UUID})
		}
		x.updateRow(&fx, r, change)
	}
	for _, change := range u.Sets {
		x.updateSet(&fx, r, change)
	}
	return fx
}

func (x *index) updateRow(fx *effects, r *ovsdbclient.Replica, change ovsdbclient.RowChange) {
	if change.Old != nil && change.New != nil && equalManaged(change.Old, change.New) {
		if slices.Contains(followed, change.Table) {
			fx.touch(change.UUID, change.New)
		}
		return
	}
	id := rowID{table: change.Table, uuid: change.UUID}
	if change.New == nil {
		x.incarnations.deleted(change.UUID)
	}
	if ref, ours := identify(change.UUID, change.Old); ours {
		x.remove(ref.Owner, id, recordsOf(id, change.Old))
		fx.touched = append(fx.touched, ref.Owner)
	}
	if ref, ours := identify(change.UUID, change.New); ours {
		x.add(ref.Owner, id, recordsOf(id, change.New))
		if change.Old == nil {
			x.incarnations.inserted(change.Table, ref)
		}
		fx.touched = append(fx.touched, ref.Owner)
	}
	for _, values := range [][]string{recordedValues(change.Old), recordedValues(change.New)} {
		for _, value := range values {
			for _, set := range r.Within(value) {
				x.judge(fx, r, element{set: set.ID, value: value})
			}
		}
	}
}

// judge updates orphans for one element. The owner of the set's row removes an orphan when it is next applied, so judge marks
// it as touched.
func (x *index) judge(fx *effects, r *ovsdbclient.Replica, e element) {
	actual := r.Set(e.set)
	if actual == nil || !actual.Has(e.value) || x.held(e) {
		if delete(x.orphans[e.set], e.value); len(x.orphans[e.set]) == 0 {
			delete(x.orphans, e.set)
		}
		return
	}
	if x.orphans[e.set] == nil {
		x.orphans[e.set] = map[string]struct{}{}
	}
	x.orphans[e.set][e.value] = struct{}{}
	fx.touch(e.set.UUID, r.Row(e.set.Table, e.set.UUID))
}

// updateSet marks the owners whose members or elements were added or removed.
func (x *index) updateSet(fx *effects, r *ovsdbclient.Replica, change ovsdbclient.SetChange) {
	memberTable, err := northbound().values(change.ID)
	if err != nil {
		return // a set of a newer schema
	}
	if memberTable == "" {
		for _, values := range [][]string{change.Added, change.Removed} {
			for _, value := range values {
				x.judge(fx, r, element{set: change.ID, value: value})
			}
		}
		for _, value := range change.Removed {
			fx.touched = append(fx.touched, x.holders(element{set: change.ID, value: value})...)
		}
		return
	}
	for _, uuids := range [][]string{change.Added, change.Removed} {
		for _, uuid := range uuids {
			fx.touch(uuid, r.Row(memberTable, uuid))
		}
	}
}

func (fx *effects) touch(uuid string, model any) {
	if ref, ours := identify(uuid, model); ours {
		fx.touched = append(fx.touched, ref.Owner)
	}
}

func (x *index) add(owner desired.Owner, id rowID, records []element) {
	kind := x.owners[owner.Kind]
	if kind == nil {
		kind = map[desired.Owner][]rowID{}
		x.owners[owner.Kind] = kind
	}
	kind[owner] = append(kind[owner], id)
	for _, key := range records {
		x.recorders[key] = append(x.recorders[key], owner)
	}
}

func (x *index) remove(owner desired.Owner, id rowID, records []element) {
	kind := x.owners[owner.Kind]
	if rest := slices.DeleteFunc(kind[owner], func(other rowID) bool { return other == id }); len(rest) > 0 {
		kind[owner] = rest
	} else {
		delete(kind, owner)
	}
	for _, key := range records {
		all := x.recorders[key]
		if i := slices.Index(all, owner); i >= 0 {
			all = slices.Delete(all, i, i+1)
		}
		if x.recorders[key] = all; len(all) == 0 {
			delete(x.recorders, key)
		}
	}
}

// rows returns the rows of an owner.
func (x *index) rows(owner desired.Owner) []rowID { return x.owners[owner.Kind][owner] }

// equalManaged reports whether two models of one row are equal in all managed columns.
func equalManaged(a, b any) bool {
	t, err := northbound().of(a)
	if err != nil {
		return false
	}
	for _, c := range t.columns {
		if !c.equal(c.get(a), c.get(b)) {
			return false
		}
	}
	return true
}
