// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/ovn-kubernetes/libovsdb/updates"
)

// Replica is the monitored part of a database after the last message from its server. It may be read only inside Session.Read
// and in an observer. Its models must not be modified.
type Replica struct {
	model  model.DatabaseModel
	decode map[string]*rowDecoder
	tables map[string]map[string]model.Model
	sets   map[SetID]*Set
	within map[string][]*Set // by the value that the sets contain
}

// SetID names a Shared column of a row.
type SetID struct{ Table, Column, UUID string }

// Set is the value of a Shared column of a row.
type Set struct {
	ID SetID
	// Refers is true if the values are UUIDs of rows, otherwise they are strings.
	Refers bool
	values map[string]struct{}
}

// Has reports whether the set contains a value.
func (s *Set) Has(value string) bool {
	_, ok := s.values[value]
	return ok
}

// Values returns the values, in no order.
func (s *Set) Values() []string { return slices.Collect(maps.Keys(s.values)) }

// Len is the number of values.
func (s *Set) Len() int { return len(s.values) }

// Update is the change made by one message from the server.
type Update struct {
	Rows []RowChange
	Sets []SetChange
}

// RowChange is one row that was inserted (Old is nil), changed, or deleted (New is nil). The models do not have the Shared
// columns.
type RowChange struct {
	Table, UUID string
	Old, New    model.Model
}

// SetChange is one change of a Shared column.
type SetChange struct {
	ID             SetID
	Added, Removed []string
}

func newReplica(m model.DatabaseModel) *Replica {
	r := &Replica{
		model:  m,
		decode: newRowDecoders(m),
		tables: map[string]map[string]model.Model{},
		sets:   map[SetID]*Set{},
		within: map[string][]*Set{},
	}
	for table := range m.Types() {
		r.tables[table] = map[string]model.Model{}
	}
	return r
}

// Row returns a row, or nil.
func (r *Replica) Row(table, uuid string) model.Model { return r.tables[table][uuid] }

// Rows returns the rows of a table by UUID.
func (r *Replica) Rows(table string) map[string]model.Model { return r.tables[table] }

// Set returns a Shared column of a row, or nil if the row does not exist.
func (r *Replica) Set(id SetID) *Set { return r.sets[id] }

// Within returns the sets that contain a value: the UUID of a row, or a string.
func (r *Replica) Within(value string) []*Set { return r.within[value] }

// everything returns the update that turns an empty replica into this one.
func (r *Replica) everything() Update {
	var u Update
	for table, rows := range r.tables {
		for uuid, row := range rows {
			u.Rows = append(u.Rows, RowChange{Table: table, UUID: uuid, New: row})
		}
	}
	for id, set := range r.sets {
		if set.Len() > 0 {
			u.Sets = append(u.Sets, SetChange{ID: id, Added: slices.Collect(maps.Keys(set.values))})
		}
	}
	return u
}

// apply applies a message's changes to the replica. After an error the replica is inconsistent, and the whole database must be
// read again.
func (r *Replica) apply(tables tableUpdates) (Update, error) {
	var u Update
	for table, rows := range tables {
		if r.tables[table] == nil {
			return u, fmt.Errorf("update of table %s, which is not monitored", table)
		}
		for uuid, row := range rows {
			if err := r.applyRow(&u, table, uuid, row); err != nil {
				return u, fmt.Errorf("update of row %s in %s: %w", uuid, table, err)
			}
		}
	}
	return u, nil
}

func (r *Replica) applyRow(u *Update, table, uuid string, row rowUpdate) error {
	old := r.tables[table][uuid]
	switch {
	case row.insert != nil:
		return r.insertRow(u, table, uuid, row.insert)
	case row.modify != nil && old == nil:
		return fmt.Errorf("it is not in the replica")
	case row.modify != nil:
		return r.modifyRow(u, table, uuid, row)
	case old != nil:
		r.deleteRow(u, table, uuid, old)
	}
	return nil
}

func (r *Replica) insertRow(u *Update, table, uuid string, columns []byte) error {
	row, err := r.decode[table].decode(uuid, columns)
	if err != nil {
		return err
	}
	for _, column := range Shared[table] {
		r.applySet(u, SetID{Table: table, Column: column, UUID: uuid}, row.shared[column])
	}
	r.replaceRow(u, table, uuid, row.model)
	return nil
}

func (r *Replica) modifyRow(u *Update, table, uuid string, row rowUpdate) error {
	changes, err := row.columns()
	if err != nil {
		return err
	}
	for _, column := range Shared[table] {
		values, err := changes.strings(column)
		if err != nil {
			return fmt.Errorf("column %s: %w", column, err)
		}
		r.applySet(u, SetID{Table: table, Column: column, UUID: uuid}, values)
	}
	rest := changes.rest(table)
	if len(rest) == 0 { // only Shared columns changed
		return nil
	}
	var delta updates.ModelUpdates
	if err := delta.AddRowUpdate2(r.model, table, uuid, r.tables[table][uuid], ovsdb.RowUpdate2{Modify: &rest}); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if changed := delta.GetModel(table, uuid); changed != nil {
		r.replaceRow(u, table, uuid, changed)
	}
	return nil
}

func (r *Replica) replaceRow(u *Update, table, uuid string, row model.Model) {
	u.Rows = append(u.Rows, RowChange{Table: table, UUID: uuid, Old: r.tables[table][uuid], New: row})
	r.tables[table][uuid] = row
}

func (r *Replica) deleteRow(u *Update, table, uuid string, old model.Model) {
	for _, column := range Shared[table] {
		id := SetID{Table: table, Column: column, UUID: uuid}
		set := r.sets[id]
		if set == nil {
			continue
		}
		removed := slices.Collect(maps.Keys(set.values))
		for _, value := range removed {
			r.remove(set, value)
		}
		delete(r.sets, id)
		if len(removed) > 0 {
			u.Sets = append(u.Sets, SetChange{ID: id, Removed: removed})
		}
	}
	delete(r.tables[table], uuid)
	u.Rows = append(u.Rows, RowChange{Table: table, UUID: uuid, Old: old})
}

// applySet applies the values of one set in a message: all values of a new row, or the added and removed values of an existing
// one (ovsdb-server(7), update2 notification).
func (r *Replica) applySet(u *Update, id SetID, values []string) {
	set := r.sets[id]
	if set == nil {
		refers := r.model.Schema.Table(id.Table).Column(id.Column).TypeObj.Key.Type == ovsdb.TypeUUID
		set = &Set{ID: id, Refers: refers}
		r.sets[id] = set
	}
	if len(values) == 0 {
		return
	}
	change := SetChange{ID: id}
	for _, value := range values {
		if set.Has(value) {
			r.remove(set, value)
			change.Removed = append(change.Removed, value)
		} else {
			r.add(set, value)
			change.Added = append(change.Added, value)
		}
	}
	u.Sets = append(u.Sets, change)
}

func (r *Replica) add(set *Set, value string) {
	if set.values == nil { // most sets of ports stay empty
		set.values = map[string]struct{}{}
	}
	set.values[value] = struct{}{}
	r.within[value] = append(r.within[value], set)
}

func (r *Replica) remove(set *Set, value string) {
	delete(set.values, value)
	rest := slices.DeleteFunc(r.within[value], func(s *Set) bool { return s == set })
	if len(rest) == 0 {
		delete(r.within, value)
	} else {
		r.within[value] = rest
	}
}

// changesTo returns the update that turns this replica into a newer one, which was read as a whole.
func (r *Replica) changesTo(newer *Replica) Update {
	var u Update
	for table, rows := range r.tables {
		for uuid, old := range rows {
			row := newer.tables[table][uuid]
			if row == nil || !model.Equal(old, row) {
				u.Rows = append(u.Rows, RowChange{Table: table, UUID: uuid, Old: old, New: row})
			}
		}
		for uuid, row := range newer.tables[table] {
			if rows[uuid] == nil {
				u.Rows = append(u.Rows, RowChange{Table: table, UUID: uuid, New: row})
			}
		}
	}
	for id, set := range r.sets {
		if change := set.changesTo(newer.sets[id]); change.Added != nil || change.Removed != nil {
			u.Sets = append(u.Sets, change)
		}
	}
	for id, set := range newer.sets {
		if r.sets[id] == nil && set.Len() > 0 {
			u.Sets = append(u.Sets, SetChange{ID: id, Added: slices.Collect(maps.Keys(set.values))})
		}
	}
	return u
}

func (s *Set) changesTo(newer *Set) SetChange {
	change := SetChange{ID: s.ID}
	for value := range s.values {
		if newer == nil || !newer.Has(value) {
			change.Removed = append(change.Removed, value)
		}
	}
	if newer == nil {
		return change
	}
	for value := range newer.values {
		if !s.Has(value) {
			change.Added = append(change.Added, value)
		}
	}
	return change
}
