// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

// Each calls f with every row of one table, selected by the model type, that owners of a kind have. f must be quick. It must
// not modify or retain the row, or call the engine.
func Each[T any](e *Engine, kind string, f func(desired.Owner, *T)) {
	e.session.Read(func(r *ovsdbclient.Replica) {
		for owner, ids := range e.index.owners[kind] {
			for _, id := range ids {
				if row, ok := r.Row(id.table, id.uuid).(*T); ok {
					f(owner, row)
				}
			}
		}
	})
}

// Has reports whether the database has a row of a table other than Load_Balancer, whose rows have UUIDs that do not follow from their Ref.
func (e *Engine) Has(table string, row desired.Ref) (has bool) {
	id := row.UUID()
	e.session.Read(func(r *ovsdbclient.Replica) { has = r.Row(table, id) != nil })
	return has
}

// Elements returns the values of a set of strings in the database, in no order.
func (e *Engine) Elements(set desired.Set) (values []string) {
	id := setID(set)
	e.session.Read(func(r *ovsdbclient.Replica) {
		if s := r.Set(id); s != nil {
			values = s.Values()
		}
	})
	return values
}
