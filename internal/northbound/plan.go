// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"cmp"
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

// plan is the difference between an owner's wanted rows and the database.
type plan struct {
	inserts []write
	updates []write
	removes []membership // from sets; before adds, so that a value that one owner releases and another adds stays
	orphans []orphan
	adds    []membership
	deletes []rowID // of root tables, whose rows have no parent
	// detached is the number of unwanted rows that their parent sets lose, which deletes them.
	detached int
	needs    []rowID // rows of other owners that must still exist at commit
	awaited  []rowID // rows of optional references that do not exist
	// pending is true for a plan of an optimistic planner whose owner has elements that it does not want.
	pending bool
	// slow is true for a plan with slow changes, and later for one of a planner that left them out.
	slow, later bool
}

// write is a row to insert, or the changed columns of an existing row.
type write struct {
	rowID
	columns ovsdb.Row
}

// membership is one value of a set.
type membership struct {
	set   ovsdbclient.SetID
	value string
}

// orphan is a row without a valid record of its parent: it is removed from every possible parent set except one.
type orphan struct {
	from   childSet
	uuid   string
	except string // UUID of the parent it belongs to, or empty
}

func (p *plan) empty() bool {
	return len(p.inserts)+len(p.updates)+len(p.removes)+len(p.orphans)+len(p.adds)+len(p.deletes) == 0 && !p.pending
}

func (p *plan) size() int {
	return len(p.inserts) + len(p.updates) + len(p.removes) + len(p.orphans) + len(p.adds) + len(p.deletes) + len(p.needs)
}

// planner computes the plans of one batch. It must be used under the session's lock.
type planner struct {
	replica *ovsdbclient.Replica
	index   *index
	// released are elements that earlier plans of the batch release, by owner. The last owner to release an element must remove
	// it.
	released map[element][]desired.Owner
	// optimistic is true outside of the goroutine that commits: the elements of others can be changing.
	optimistic bool
	// defers is true if slow changes are left out.
	defers bool
	// datapaths is the number of logical switches and routers that earlier plans of the batch insert.
	datapaths int
}

// plan compares an owner's wanted rows with the replica. If missing, the rows of other owners that it waits for, is not empty,
// p is nil.
func (pl *planner) plan(owner desired.Owner, wanted wantedRows) (p *plan, missing []rowID, err error) {
	wanted = pl.incarnate(wanted)
	for _, w := range wanted.rows {
		for _, id := range w.needs {
			if !wanted.has(id) && pl.replica.Row(id.table, id.uuid) == nil {
				missing = append(missing, id)
			}
		}
	}
	if len(missing) > 0 {
		return nil, missing, nil
	}
	p = &plan{}
	for _, w := range wanted.rows {
		if err := pl.row(p, pl.existing(p, wanted, w)); err != nil {
			return nil, nil, err
		}
	}
	if !pl.admits(p) {
		return nil, []rowID{aDatapath}, nil
	}
	pl.unwanted(p, owner, wanted)
	pl.elements(p, owner, wanted)
	p.needs = slices.DeleteFunc(p.needs, wanted.has)
	return p, nil, nil
}

// existing returns a row without optional references to rows that do not exist.
func (pl *planner) existing(p *plan, wanted wantedRows, w wantedRow) wantedRow {
	for _, o := range w.optional {
		absent := func(id rowID) bool { return !wanted.has(id) && pl.replica.Row(id.table, id.uuid) == nil }
		if i := slices.IndexFunc(o.rows, absent); i >= 0 {
			p.awaited = append(p.awaited, o.rows[i])
			w = w.without(o.column)
		}
	}
	return w
}

// row plans one wanted row and its set memberships.
func (pl *planner) row(p *plan, w wantedRow) error {
	current := pl.replica.Row(w.id.table, w.id.uuid)
	columns, err := w.changes(current)
	if err != nil {
		return err
	}
	if (current == nil || len(columns) > 0) && w.table.slow && pl.slow(p) {
		return nil
	}
	switch {
	case current == nil:
		p.inserts = append(p.inserts, write{rowID: w.id, columns: columns})
		p.needs = append(p.needs, w.references...)
	case len(columns) > 0:
		p.updates = append(p.updates, write{rowID: w.id, columns: columns})
		p.needs = append(p.needs, w.references...)
	}
	if w.parent != nil {
		pl.attach(p, w, current)
	}
	pl.members(p, w)
	pl.orphans(p, w)
	return nil
}

// orphans removes the values that no row records from the row's sets of strings.
func (pl *planner) orphans(p *plan, w wantedRow) {
	for _, column := range ovsdbclient.Shared[w.table.name] {
		set := ovsdbclient.SetID{Table: w.table.name, Column: column, UUID: w.id.uuid}
		for _, value := range slices.Sorted(maps.Keys(pl.index.orphans[set])) {
			if !pl.index.held(element{set: set, value: value}) { // an owner can have got it since
				p.removes = append(p.removes, membership{set: set, value: value})
			}
		}
	}
}

// attach adds a row to its parent set, and removes it from its previous one.
func (pl *planner) attach(p *plan, w wantedRow, current any) {
	recorded := externalID(current, keyParent)
	if current != nil && recorded == formatSet(*w.parent) {
		return
	}
	p.adds = append(p.adds, membership{set: *w.parent, value: w.id.uuid})
	p.needs = append(p.needs, rowID{table: w.parent.Table, uuid: w.parent.UUID})
	if current != nil {
		pl.detach(p, w.table, w.id.uuid, recorded, w.parent.UUID)
	}
}

// detach removes a row from its recorded parent, or from all possible parents when the record is missing or stale.
func (pl *planner) detach(p *plan, t *table, uuid, recorded, except string) {
	parent, ok := parseSet(recorded)
	ok = ok && slices.Contains(t.parents, childSet{table: parent.Table, column: parent.Column})
	if ok && pl.replica.Row(parent.Table, parent.UUID) != nil {
		p.removes = append(p.removes, membership{set: parent, value: uuid})
		return
	}
	for _, from := range t.parents {
		p.orphans = append(p.orphans, orphan{from: from, uuid: uuid, except: except})
	}
}

// members makes the row a member of the wanted sets, and removes it from all other sets of owned rows.
func (pl *planner) members(p *plan, w wantedRow) {
	for _, set := range w.members {
		if actual := pl.replica.Set(set); actual == nil || !actual.Has(w.id.uuid) {
			p.adds = append(p.adds, membership{set: set, value: w.id.uuid})
			p.needs = append(p.needs, rowID{table: set.Table, uuid: set.UUID})
		}
	}
	pl.leave(p, w.id.uuid, w.members)
}

// leave removes a row from all sets of owned rows, except the given ones.
func (pl *planner) leave(p *plan, uuid string, except []ovsdbclient.SetID) {
	var others []membership
	for _, set := range pl.replica.Within(uuid) {
		_, ours := identify(set.ID.UUID, pl.replica.Row(set.ID.Table, set.ID.UUID))
		if ours && !slices.Contains(except, set.ID) {
			others = append(others, membership{set: set.ID, value: uuid})
		}
	}
	slices.SortFunc(others, func(a, b membership) int { return cmp.Compare(a.set.UUID, b.set.UUID) })
	p.removes = append(p.removes, others...)
}

// unwanted plans the deletion of rows that the owner has and no longer wants, and of their memberships. ovsdb-server removes weak references to
// a deleted row by itself, but not from a row of which the same transaction changes another column (Open vSwitch 3.5).
func (pl *planner) unwanted(p *plan, owner desired.Owner, wanted wantedRows) {
	rows := slices.Clone(pl.index.rows(owner))
	slices.SortFunc(rows, func(a, b rowID) int { return cmp.Compare(a.table+a.uuid, b.table+b.uuid) })
	for _, id := range rows {
		if wanted.has(id) {
			continue
		}
		model := pl.replica.Row(id.table, id.uuid)
		t, err := northbound().of(model)
		if err != nil {
			continue // not a table that the engine writes
		}
		if t.slow && pl.slow(p) {
			continue
		}
		pl.leave(p, id.uuid, nil)
		if len(t.parents) == 0 {
			p.deletes = append(p.deletes, id)
			continue
		}
		p.detached++
		pl.detach(p, t, id.uuid, externalID(model, keyParent), "")
	}
}

// elements adds the owner's wanted elements to sets of strings. It removes elements that the owner has and no longer
// wants, unless another owner has them too. If there is nothing to write, the owner has the wanted elements from now on.
func (pl *planner) elements(p *plan, owner desired.Owner, wanted wantedRows) {
	h := pl.index.holdings
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range wanted.elements {
		if actual := pl.replica.Set(e.set); actual != nil && actual.Has(e.value) && pl.index.holds(owner, e) {
			continue
		}
		// Add the element even if it is present: another plan of the batch may remove it.
		p.adds = append(p.adds, membership(e))
		p.needs = append(p.needs, rowID{table: e.set.Table, uuid: e.set.UUID})
	}
	var given []element
	for _, e := range pl.index.former(pl.replica, owner) {
		if _, still := wanted.contains[e]; !still {
			given = append(given, e)
		}
	}
	slices.SortFunc(given, func(a, b element) int { return cmp.Compare(a.set.UUID+a.value, b.set.UUID+b.value) })
	for _, e := range given {
		pl.release(p, owner, e, len(wanted.rows) == 0)
	}
	// Whether another owner keeps an element is decided between two transactions.
	if p.pending = pl.optimistic && len(given) > 0; p.empty() && (!pl.optimistic || !h.known(owner)) {
		h.set(owner, wanted.holding())
	}
}

// release removes an element that an owner gives up, unless another owner has it or, if it is unknown, may have it. The elements of a deleted owner are removed in the
// latter case, too, because its address can be given to others: the unknown owner adds its own again.
func (pl *planner) release(p *plan, owner desired.Owner, e element, deleted bool) {
	pl.released[e] = append(pl.released[e], owner)
	h := pl.index.holdings
	if slices.ContainsFunc(pl.index.recorded(e), func(other desired.Owner) bool {
		return !slices.Contains(pl.released[e], other) && (slices.Contains(h.by[e], other) || !h.known(other) && !deleted)
	}) {
		return
	}
	if actual := pl.replica.Set(e.set); actual != nil && actual.Has(e.value) {
		p.removes = append(p.removes, membership(e))
	}
}
