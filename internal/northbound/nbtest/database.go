// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

const database = "OVN_Northbound"

// Op is one operation of RFC 7047, section 5.2, in JSON form: Op{"op": "delete", "table": "ACL", "where": []any{}}.
type Op map[string]any

// Row is one row by column. Sets are sorted []string, maps are map[string]string, other values have their JSON type.
type Row map[string]any

// Transact runs operations as another client would, and fails the test if one of them fails.
func (s *Server) Transact(operations ...Op) {
	s.t.Helper()
	params := []any{s.name}
	for _, operation := range operations {
		params = append(params, operation)
	}
	var results []struct{ Error, Details string }
	if err := json.Unmarshal(s.call("transact", params...), &results); err != nil {
		s.t.Fatal(err)
	}
	for _, result := range results {
		if result.Error != "" {
			s.t.Fatalf("transact: %s: %s", result.Error, result.Details)
		}
	}
}

// Where is a condition on one column, for the "where" of an Op.
func Where(column, function string, value any) []any { return []any{[]any{column, function, value}} }

// UUID is a row's UUID in the form of a value.
func UUID(uuid string) []any { return []any{"uuid", uuid} }

// Map is a map in the form of a value.
func Map(m map[string]string) []any {
	pairs := [][]string{}
	for k, v := range m {
		pairs = append(pairs, []string{k, v})
	}
	return []any{"map", pairs}
}

// Rows returns all rows of a table by UUID, regardless of their owner.
func (s *Server) Rows(table string) map[string]Row {
	s.t.Helper()
	return s.read(table)[table]
}

// read returns all rows of tables by UUID, at one moment.
func (s *Server) read(tables ...string) map[string]map[string]Row {
	s.t.Helper()
	params := []any{s.name}
	for _, table := range tables {
		params = append(params, Op{"op": "select", "table": table, "where": []any{}})
	}
	var results []struct{ Rows []map[string]any }
	if err := json.Unmarshal(s.call("transact", params...), &results); err != nil {
		s.t.Fatal(err)
	}
	found := map[string]map[string]Row{}
	for i, table := range tables {
		found[table] = map[string]Row{}
		for _, columns := range results[i].Rows {
			row := Row{}
			for column, value := range columns {
				row[column] = plain(value)
			}
			uuid := row["_uuid"].(string)
			delete(row, "_uuid")
			delete(row, "_version")
			found[table][uuid] = row
		}
	}
	return found
}

// Dump returns the rows of the given tables, or of all tables, for comparisons of the database. It reads them at one moment.
func (s *Server) Dump(tables ...string) map[string]map[string]Row {
	s.t.Helper()
	if len(tables) == 0 {
		var schema struct{ Tables map[string]any }
		if err := json.Unmarshal(s.call("get_schema", s.name), &schema); err != nil {
			s.t.Fatal(err)
		}
		for table := range schema.Tables {
			tables = append(tables, table)
		}
	}
	dump := s.read(tables...)
	maps.DeleteFunc(dump, func(_ string, rows map[string]Row) bool { return len(rows) == 0 })
	return dump
}

// Names returns the sorted name column of a table.
func (s *Server) Names(table string) []string {
	s.t.Helper()
	names := []string{}
	for _, row := range s.Rows(table) {
		names = append(names, row["name"].(string))
	}
	slices.Sort(names)
	return names
}

// Strings returns a set of strings or UUIDs. OVSDB encodes a set of one value as that value.
func (r Row) Strings(column string) []string {
	switch value := r[column].(type) {
	case []string:
		return value
	case string:
		return []string{value}
	default:
		return nil
	}
}

func plain(value any) any {
	list, ok := value.([]any)
	if !ok {
		return value
	}
	switch list[0] {
	case "uuid":
		return list[1]
	case "map":
		m := map[string]string{}
		for _, pair := range list[1].([]any) {
			kv := pair.([]any)
			m[fmt.Sprint(kv[0])] = fmt.Sprint(plain(kv[1]))
		}
		return m
	default:
		values := []string{}
		for _, atom := range list[1].([]any) {
			values = append(values, fmt.Sprint(plain(atom)))
		}
		slices.Sort(values)
		return values
	}
}

// OwnerID is the external_ids key of the owner of a row, such as `Vpc//blue` (docs/development/northbound.md).
const OwnerID = "kiln-owner"

// Owned returns the tables of an owner's rows, by UUID.
func (s *Server) Owned(owner string) map[string]string {
	s.t.Helper()
	tables := map[string]string{}
	for table, rows := range s.Dump() {
		for uuid, row := range rows {
			if ids, ok := row["external_ids"].(map[string]string); ok && ids[OwnerID] == owner {
				tables[uuid] = table
			}
		}
	}
	return tables
}

// Delete deletes the rows with these UUIDs, and every reference to them in a set, as another client would.
func (s *Server) Delete(tables map[string]string) {
	s.t.Helper()
	var operations []Op
	for uuid, table := range tables {
		operations = append(operations, Op{"op": "delete", "table": table, "where": Where("_uuid", "==", UUID(uuid))})
	}
	for table, rows := range s.Dump() {
		for uuid, row := range rows {
			if tables[uuid] != "" {
				continue
			}
			for column := range row {
				for _, value := range row.Strings(column) {
					if tables[value] != "" {
						operations = append(operations, Op{
							"op": "mutate", "table": table, "where": Where("_uuid", "==", UUID(uuid)), "mutations": []any{[]any{column, "delete", UUID(value)}},
						})
					}
				}
			}
		}
	}
	s.Transact(operations...)
}
