// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

// wantedRow is a desired row in terms of the database schema.
type wantedRow struct {
	ref        desired.Ref
	id         rowID
	table      *table
	values     []any // by index of table.columns
	parent     *ovsdbclient.SetID
	members    []ovsdbclient.SetID
	elements   []element
	records    []string // the values of elements, and further values that elements can have
	references []rowID
	needs      []rowID // all rows that must exist: the parent, references, and the rows of sets
	optional   []optional
}

// optional is a column of references that is empty while one of the rows does not exist.
type optional struct {
	column int // index of table.columns
	rows   []rowID
}

// wantedRows are all rows that an owner wants.
type wantedRows struct {
	rows     []wantedRow
	ids      map[rowID]struct{}
	elements []element // without duplicates
	contains map[element]struct{}
}

func (w wantedRows) has(id rowID) bool {
	_, ok := w.ids[id]
	return ok
}

// interpretAll validates a translator's rows and converts them. Its errors are defects of the translator, not of the user's
// input.
func interpretAll(owner desired.Owner, want []desired.Row) (wantedRows, error) {
	all := wantedRows{rows: make([]wantedRow, 0, len(want)), ids: make(map[rowID]struct{}, len(want))}
	for _, row := range want {
		w, err := interpret(desired.Ref{Owner: owner, Key: row.Key}, row)
		if err != nil {
			return wantedRows{}, fmt.Errorf("row %q: %w", row.Key, err)
		}
		if all.has(w.id) {
			return wantedRows{}, fmt.Errorf("row %q: there are two rows of this key", row.Key)
		}
		all.ids[w.id] = struct{}{}
		all.rows = append(all.rows, w)
		for _, e := range w.elements {
			if _, known := all.contains[e]; known {
				continue
			}
			if all.contains == nil {
				all.contains = map[element]struct{}{}
			}
			all.contains[e] = struct{}{}
			all.elements = append(all.elements, e)
		}
	}
	return all, nil
}

func interpret(ref desired.Ref, row desired.Row) (wantedRow, error) {
	t, err := northbound().of(row.Model)
	if err != nil {
		return wantedRow{}, err
	}
	if reflect.ValueOf(row.Model).IsNil() {
		return wantedRow{}, fmt.Errorf("its model is nil")
	}
	if err := t.checkParent(row.Parent); err != nil {
		return wantedRow{}, err
	}
	w := wantedRow{ref: ref, id: rowID{table: t.name, uuid: ref.UUID()}, table: t}
	if row.Parent != nil {
		parent := setID(*row.Parent)
		w.parent = &parent
		w.needs = append(w.needs, rowID{table: parent.Table, uuid: parent.UUID})
	}
	if err := w.join(row); err != nil {
		return wantedRow{}, err
	}
	if err := w.fill(ref, row); err != nil {
		return wantedRow{}, err
	}
	return w, nil
}

// join adds the sets that the row is a member of or adds elements to.
func (w *wantedRow) join(row desired.Row) error {
	for _, set := range row.Members {
		if err := checkShared(set, w.table.name); err != nil {
			return err
		}
		id := setID(set)
		w.members = append(w.members, id)
		w.needs = append(w.needs, rowID{table: id.Table, uuid: id.UUID})
	}
	if w.table.named && len(row.Elements)+len(row.Values) > 0 {
		return fmt.Errorf("a row of %s cannot record elements", w.table.name)
	}
	w.records = slices.Clone(row.Values)
	for _, e := range row.Elements {
		if err := checkShared(e.Of, ""); err != nil {
			return err
		}
		if err := checkText(e.Value); err != nil {
			return fmt.Errorf("element of %s.%s: %w", e.Of.Table, e.Of.Column, err)
		}
		id := setID(e.Of)
		w.elements = append(w.elements, element{set: id, value: e.Value})
		w.records = append(w.records, e.Value)
		w.needs = append(w.needs, rowID{table: id.Table, uuid: id.UUID})
	}
	return nil
}

// fill computes the values of the managed columns: from the model, from references, and the engine's ownership keys.
func (w *wantedRow) fill(ref desired.Ref, row desired.Row) error {
	w.values = make([]any, len(w.table.columns))
	for i, c := range w.table.columns {
		w.values[i] = c.get(row.Model)
		switch {
		case c.name == "external_ids":
			stamped, err := stamp(w.values[i].(map[string]string), ref, w.parent, w.records)
			if err != nil {
				return err
			}
			w.values[i] = stamped
		case c.name == "name" && w.table.named:
			w.values[i] = reservedName(ref)
		}
		if err := checkText(w.values[i]); err != nil {
			return fmt.Errorf("column %s: %w", c.name, err)
		}
	}
	for _, reference := range row.References {
		if err := w.refer(reference); err != nil {
			return err
		}
	}
	return nil
}

func (w *wantedRow) refer(reference desired.Reference) error {
	i := slices.IndexFunc(w.table.columns, func(c column) bool { return c.name == reference.Column })
	if i < 0 || refTable(w.table.columns[i].schema) == "" {
		return fmt.Errorf("column %q of %s holds no references", reference.Column, w.table.name)
	}
	c := w.table.columns[i]
	uuids, ids := make([]string, len(reference.To)), make([]rowID, len(reference.To))
	for j, to := range reference.To {
		uuids[j] = to.UUID()
		ids[j] = rowID{table: refTable(c.schema), uuid: uuids[j]}
	}
	if reference.Optional {
		w.optional = append(w.optional, optional{column: i, rows: ids})
	} else {
		w.references = append(w.references, ids...)
		w.needs = append(w.needs, ids...)
	}
	value, err := c.references(uuids)
	if err != nil {
		return err
	}
	w.values[i] = value
	return nil
}

// without returns the row with an empty value in a column.
func (w wantedRow) without(column int) wantedRow {
	w.values = slices.Clone(w.values)
	w.values[column] = reflect.Zero(reflect.TypeOf(w.values[column])).Interface()
	return w
}

// changes returns the columns that differ from the current row. Without a current row it returns the columns that an insert
// needs.
func (w *wantedRow) changes(current any) (ovsdb.Row, error) {
	row := ovsdb.Row{}
	for i, c := range w.table.columns {
		if current == nil && c.empty(w.values[i]) || current != nil && c.equal(w.values[i], c.get(current)) {
			continue
		}
		value, err := c.wire(w.values[i])
		if err != nil {
			return nil, err
		}
		row[c.name] = value
	}
	return row, nil
}
