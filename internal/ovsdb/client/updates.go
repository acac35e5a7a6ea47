// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/intern"
)

// tableUpdates is <table-updates2> of ovsdb-server(7): row updates by table and UUID.
type tableUpdates map[string]map[string]rowUpdate

// rowUpdate is <row-update2> of ovsdb-server(7), its columns in JSON's own types. All nil: the row is deleted.
type rowUpdate struct {
	Initial map[string]any `json:"initial"`
	Insert  map[string]any `json:"insert"`
	Modify  map[string]any `json:"modify"`
}

func (u rowUpdate) deletes() bool { return u.Initial == nil && u.Insert == nil && u.Modify == nil }

func (u rowUpdate) columns() map[string]any {
	switch {
	case u.Initial != nil:
		return u.Initial
	case u.Insert != nil:
		return u.Insert
	default:
		return u.Modify
	}
}

// rest is the update without Shared columns, in libovsdb's form.
func (u rowUpdate) rest(table string) ovsdb.RowUpdate2 {
	row := make(ovsdb.Row, len(u.columns()))
	for column, value := range u.columns() {
		if !isShared(table, column) {
			row[column] = notation(value)
		}
	}
	if u.Modify != nil {
		return ovsdb.RowUpdate2{Modify: &row}
	}
	return ovsdb.RowUpdate2{Insert: &row}
}

// strings returns a set column of strings or UUIDs.
func (u rowUpdate) strings(column string) ([]string, error) {
	value, ok := u.columns()[column]
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

// notation turns JSON's own types into libovsdb's: ["uuid", u], ["set", […]] and ["map", […]] (RFC 7047, section 5.1). Strings that many
// rows have become one.
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
