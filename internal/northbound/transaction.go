// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

// transaction merges plans into the operations of one transaction, in this order: fence, inserts, waits for rows of other
// owners, updates, removals from sets, additions to sets, deletions. Values for the same set share one operation.
type transaction struct {
	operations []ovsdb.Operation
	inserted   map[rowID]bool
	needed     map[rowID]bool
}

func newTransaction(fence ovsdb.Operation) *transaction {
	return &transaction{
		operations: []ovsdb.Operation{fence},
		inserted:   map[rowID]bool{},
		needed:     map[rowID]bool{},
	}
}

func (t *transaction) add(plans []*plan) {
	for _, p := range plans {
		for _, w := range p.inserts {
			t.inserted[w.rowID] = true
			t.append(ovsdb.Operation{Op: ovsdb.OperationInsert, Table: w.table, UUID: w.uuid, Row: w.columns})
		}
	}
	for _, p := range plans {
		t.need(p.needs)
	}
	for _, p := range plans {
		for _, w := range p.updates {
			t.append(ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: w.table, Where: byUUID(w.uuid), Row: w.columns})
		}
	}
	t.mutate(plans, ovsdb.MutateOperationDelete, func(p *plan) []membership { return p.removes })
	for _, p := range plans {
		for _, s := range p.orphans {
			t.append(s.operation())
		}
	}
	t.mutate(plans, ovsdb.MutateOperationInsert, func(p *plan) []membership { return p.adds })
	for _, p := range plans {
		for _, id := range p.deletes {
			t.append(ovsdb.Operation{Op: ovsdb.OperationDelete, Table: id.table, Where: byUUID(id.uuid)})
		}
	}
}

func (t *transaction) append(op ovsdb.Operation) { t.operations = append(t.operations, op) }

// need adds wait operations for rows that this transaction does not insert. Without them a mutate of a deleted row would
// succeed, and ovsdb-server would drop a reference to one.
func (t *transaction) need(ids []rowID) {
	for _, id := range ids {
		if t.inserted[id] || t.needed[id] {
			continue
		}
		t.needed[id] = true
		now := 0
		t.append(ovsdb.Operation{
			Op: ovsdb.OperationWait, Table: id.table, Timeout: &now, Where: byUUID(id.uuid),
			Columns: []string{"_uuid"}, Until: string(ovsdb.WaitConditionEqual), Rows: []ovsdb.Row{{"_uuid": ovsdb.UUID{GoUUID: id.uuid}}},
		})
	}
}

// mutate adds one operation per set, with all memberships of that set.
func (t *transaction) mutate(plans []*plan, mutator ovsdb.Mutator, of func(*plan) []membership) {
	values := map[ovsdbclient.SetID][]any{}
	var order []ovsdbclient.SetID
	for _, p := range plans {
		for _, m := range of(p) {
			if values[m.set] == nil {
				order = append(order, m.set)
			}
			values[m.set] = append(values[m.set], setValue(m))
		}
	}
	for _, set := range order {
		t.append(ovsdb.Operation{
			Op: ovsdb.OperationMutate, Table: set.Table, Where: byUUID(set.UUID),
			Mutations: []ovsdb.Mutation{{Column: set.Column, Mutator: mutator, Value: ovsdb.OvsSet{GoSet: values[set]}}},
		})
	}
}

// setValue returns a membership's value in the form of an operation.
func setValue(m membership) any {
	if table, err := northbound().values(m.set); err == nil && table == "" {
		return m.value
	}
	return ovsdb.UUID{GoUUID: m.value}
}

func (s orphan) operation() ovsdb.Operation {
	self := ovsdb.UUID{GoUUID: s.uuid}
	where := []ovsdb.Condition{ovsdb.NewCondition(s.from.column, ovsdb.ConditionIncludes, ovsdb.OvsSet{GoSet: []any{self}})}
	if s.except != "" {
		where = append(where, ovsdb.NewCondition("_uuid", ovsdb.ConditionNotEqual, ovsdb.UUID{GoUUID: s.except}))
	}
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: s.from.table, Where: where,
		Mutations: []ovsdb.Mutation{{Column: s.from.column, Mutator: ovsdb.MutateOperationDelete, Value: self}},
	}
}

func byUUID(uuid string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: uuid})}
}

// failure describes why the server refused a transaction.
type failure struct {
	operation int // index; len(operations) when the commit failed
	err       error
}

// failed returns the first error of a transaction, or nil.
func failed(operations []ovsdb.Operation, results []ovsdbclient.Result) *failure {
	for i, result := range results {
		if result.Error == "" {
			continue
		}
		what := "commit"
		if i < len(operations) {
			what = operations[i].Op + " " + operations[i].Table
		}
		return &failure{operation: i, err: fmt.Errorf("%s: %s: %s", what, result.Error, result.Details)}
	}
	return nil
}

// owned adds the owner to an error of Apply.
func owned(owner desired.Owner, err error) error {
	return fmt.Errorf("apply rows of %s to the northbound database: %w", owner, err)
}
