// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/intern"
)

// tableUpdates is <table-updates2> of ovsdb-server(7): row updates by table and UUID.
type tableUpdates map[string]map[string]rowUpdate

// rowUpdate is <row-update2> of ovsdb-server(7). Its columns stay JSON until their use is known.
type rowUpdate struct {
	// insert has the columns of a row that is new, or that exists when the monitor starts.
	insert []byte
	// modify has the changed columns. If insert and modify are both nil, the row is deleted.
	modify []byte
}

func readUpdates(in []byte) (tableUpdates, error) {
	r := &reader{in: in}
	updates := r.updates()
	return updates, r.err
}

// updates reads <table-updates2>. The result refers to parts of the input.
func (r *reader) updates() tableUpdates {
	tables := tableUpdates{}
	r.object(func(table []byte) {
		rows := map[string]rowUpdate{}
		tables[string(table)] = rows
		r.object(func(uuid []byte) { rows[string(uuid)] = r.update() })
	})
	return tables
}

func (r *reader) update() rowUpdate {
	var u rowUpdate
	r.object(func(kind []byte) {
		columns := r.value()
		switch string(kind) {
		case "initial", "insert":
			u.insert = columns
		case "modify":
			u.modify = columns
		}
	})
	return u
}

// columns returns the columns of the update.
func (u rowUpdate) columns() (columns, error) {
	var all columns
	in := u.insert
	if in == nil {
		in = u.modify
	}
	if in == nil {
		return nil, nil
	}
	if err := json.Unmarshal(in, &all); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return all, nil
}

// columns are the columns of a row, as encoding/json decodes them.
type columns map[string]any

// rest returns all columns except Shared ones, in libovsdb's form.
func (c columns) rest(table string) ovsdb.Row {
	row := make(ovsdb.Row, len(c))
	for column, value := range c {
		if !isShared(table, column) {
			row[column] = notation(value)
		}
	}
	return row
}

// strings returns a set column of strings or UUIDs.
func (c columns) strings(column string) ([]string, error) {
	value, ok := c[column]
	if !ok {
		return nil, nil
	}
	atoms := []any{notation(value)}
	if set, ok := atoms[0].(ovsdb.OvsSet); ok {
		atoms = set.GoSet
	}
	values := make([]string, len(atoms))
	for i, atom := range atoms {
		switch atom := atom.(type) {
		case string:
			values[i] = atom
		case ovsdb.UUID:
			values[i] = atom.GoUUID
		default:
			return nil, fmt.Errorf("%T in a set of strings", atom)
		}
	}
	return values, nil
}

// notation converts values of encoding/json to libovsdb's: ["uuid", u], ["set", […]] and ["map", […]] (RFC 7047, section 5.1).
// It interns strings, because many rows have the same ones.
func notation(value any) any {
	list, ok := value.([]any)
	if !ok || len(list) != 2 {
		if s, ok := value.(string); ok {
			return intern.String(s)
		}
		return value
	}
	switch content := list[1].(type) {
	case string:
		return ovsdb.UUID{GoUUID: content}
	case []any:
		if list[0] == "map" {
			return mapNotation(content)
		}
		set := ovsdb.OvsSet{GoSet: make([]any, len(content))}
		for i, atom := range content {
			set.GoSet[i] = notation(atom)
		}
		return set
	default:
		return value
	}
}

func mapNotation(pairs []any) ovsdb.OvsMap {
	m := ovsdb.OvsMap{GoMap: make(map[any]any, len(pairs))}
	for _, pair := range pairs {
		if kv, ok := pair.([]any); ok && len(kv) == 2 {
			m.GoMap[notation(kv[0])] = notation(kv[1])
		}
	}
	return m
}
