// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Managed columns. The engine manages every column of an owned row, including external_ids and options, except:
//
//   - columns that northd or ovsdb-server write, listed here: the engine neither compares nor writes them;
//   - ovsdbclient.Children and ovsdbclient.Shared: the engine writes them as deltas, on behalf of rows that name them as parent
//     or are members.
var writtenByOthers = map[string][]string{
	nb.LogicalSwitchPortTable: {"up", "tag", "dynamic_addresses"},
	nb.LogicalRouterPortTable: {"ipv6_prefix", "status"},
	nb.BFDTable:               {"status"},
}

// followed are the tables whose owners are notified when another program changes a column of writtenByOthers.
var followed = []string{nb.BFDTable}

// unowned lists the tables whose rows cannot record an owner: the singletons, and two tables without a column for it.
var unowned = []string{nb.NBGlobalTable, nb.ConnectionTable, nb.SSLTable, nb.StaticMACBindingTable, nb.SampleTable}

// table describes one table of the schema for the engine.
type table struct {
	name    string
	columns []column
	parents []childSet // empty: a root table, whose rows need no parent
	named   bool       // the table has no external_ids: the name column stores owner and key
	slow    bool       // see slowTables
}

// childSet is a column of another table that can keep rows of this table alive.
type childSet struct{ table, column string }

// column is a managed column.
type column struct {
	name   string
	field  int // in the model
	schema *ovsdb.ColumnSchema
}

var northbound = sync.OnceValue(func() *database {
	schema := nb.Schema()
	models, err := nb.FullDatabaseModel()
	if err != nil {
		panic(fmt.Sprintf("generated models: %v", err)) // a defect of generated code, seen by every test
	}
	d := &database{schema: schema, tables: map[reflect.Type]*table{}}
	for name, modelType := range models.Types() {
		if !slices.Contains(unowned, name) {
			d.tables[modelType] = newTable(schema, name, modelType.Elem())
		}
	}
	return d
})

// database describes the northbound schema for the engine.
type database struct {
	schema ovsdb.DatabaseSchema
	tables map[reflect.Type]*table
}

// of returns the table of a model's type.
func (d *database) of(model any) (*table, error) {
	if t := d.tables[reflect.TypeOf(model)]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("%T is not a pointer to a model whose rows can have an owner", model)
}

// values returns the value type of a set column: the name of the referenced table, or "" for a set of strings.
func (d *database) values(set ovsdbclient.SetID) (table string, err error) {
	schema := d.schema.Table(set.Table)
	if schema == nil || schema.Column(set.Column) == nil || schema.Column(set.Column).TypeObj == nil {
		return "", fmt.Errorf("there is no set %s in table %q", set.Column, set.Table)
	}
	if key := schema.Column(set.Column).TypeObj.Key; key.Type == ovsdb.TypeUUID {
		return refTable(schema.Column(set.Column)), nil
	}
	return "", nil
}

func refTable(column *ovsdb.ColumnSchema) string {
	if column.TypeObj == nil || column.TypeObj.Key == nil {
		return ""
	}
	name, err := column.TypeObj.Key.RefTable()
	if err != nil {
		return ""
	}
	return name
}

func newTable(schema ovsdb.DatabaseSchema, name string, model reflect.Type) *table {
	t := &table{name: name, named: schema.Table(name).Column("external_ids") == nil, slow: slices.Contains(slowTables, name)}
	for i := range model.NumField() {
		columnName := model.Field(i).Tag.Get("ovsdb")
		columnSchema := schema.Table(name).Column(columnName)
		if columnName == "_uuid" || columnSchema == nil || !managed(name, columnName) {
			continue
		}
		t.columns = append(t.columns, column{name: columnName, field: i, schema: columnSchema})
	}
	for parent, columns := range ovsdbclient.Children {
		for _, c := range columns {
			if refTable(schema.Table(parent).Column(c)) == name {
				t.parents = append(t.parents, childSet{table: parent, column: c})
			}
		}
	}
	slices.SortFunc(t.parents, func(a, b childSet) int { return cmp.Compare(a.table+a.column, b.table+b.column) })
	return t
}

func managed(table, column string) bool {
	for _, except := range []map[string][]string{writtenByOthers, ovsdbclient.Children, ovsdbclient.Shared} {
		if slices.Contains(except[table], column) {
			return false
		}
	}
	return true
}

// checkParent returns an error if a row of the table cannot have this parent.
func (t *table) checkParent(parent *desired.Set) error {
	switch {
	case parent == nil && len(t.parents) == 0:
		return nil
	case parent == nil:
		return fmt.Errorf("a row of %s needs a parent", t.name)
	case !slices.Contains(t.parents, childSet{table: parent.Table, column: parent.Column}):
		return fmt.Errorf("%s.%s keeps no row of %s alive", parent.Table, parent.Column, t.name)
	default:
		return nil
	}
}

// checkShared returns an error unless several owners can contribute to the set, and it holds references to the given table, or
// strings for "".
func checkShared(set desired.Set, holds string) error {
	if !slices.Contains(ovsdbclient.Shared[set.Table], set.Column) {
		return fmt.Errorf("%s.%s is not a set that many owners contribute to", set.Table, set.Column)
	}
	actual, err := northbound().values(ovsdbclient.SetID{Table: set.Table, Column: set.Column})
	if err == nil && actual != holds {
		err = fmt.Errorf("%s.%s holds values of %q, not of %q", set.Table, set.Column, actual, holds)
	}
	return err
}
