// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Select decodes the columns of all rows of a table that meet the conditions (RFC 7047, section 5.2.2) into rows, a pointer to a slice of
// structs whose fields have the names of columns in their JSON tags. Map, Set and UUID decode columns of these types.
func (c *Conn) Select(database, table string, columns []string, where []any, rows any) error {
	if where == nil {
		where = []any{}
	}
	var results []struct {
		Rows           json.RawMessage
		Error, Details string
	}
	operation := map[string]any{"op": "select", "table": table, "where": where, "columns": columns}
	if err := c.Call("transact", []any{database, operation}, &results); err != nil {
		return fmt.Errorf("select %s: %w", table, err)
	}
	for _, r := range results {
		if r.Error != "" {
			return fmt.Errorf("select %s: %s: %s", table, r.Error, r.Details)
		}
	}
	if len(results) != 1 {
		return fmt.Errorf("select %s: %d results", table, len(results))
	}
	if err := json.Unmarshal(results[0].Rows, rows); err != nil {
		return fmt.Errorf("decode %s: %w", table, err)
	}
	return nil
}

// Map is a column of type map: `["map", [[key, value], …]]`.
type Map[V any] map[string]V

// UnmarshalJSON implements json.Unmarshaler.
func (m *Map[V]) UnmarshalJSON(text []byte) error {
	var pairs [][2]json.RawMessage
	if err := json.Unmarshal(text, &[]any{new(string), &pairs}); err != nil {
		return fmt.Errorf("decode a map: %w", err)
	}
	*m = make(Map[V], len(pairs))
	for _, p := range pairs {
		var key string
		var value V
		if err := json.Unmarshal(p[0], &key); err != nil {
			return fmt.Errorf("decode the key of a map: %w", err)
		}
		if err := json.Unmarshal(p[1], &value); err != nil {
			return fmt.Errorf("decode the value of a map: %w", err)
		}
		(*m)[key] = value
	}
	return nil
}

// Set is a column with any number of values. One value has no enclosing set: `["set", [v, …]]` or `v`.
type Set[V any] []V

// UnmarshalJSON implements json.Unmarshaler.
func (s *Set[V]) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte(`["set"`)) {
		var values []V
		if err := json.Unmarshal(text, &[]any{new(string), &values}); err != nil {
			return fmt.Errorf("decode a set: %w", err)
		}
		*s = values
		return nil
	}
	var value V
	if err := json.Unmarshal(text, &value); err != nil {
		return fmt.Errorf("decode a value: %w", err)
	}
	*s = Set[V]{value}
	return nil
}

// First returns the first value, or the zero value of an empty set: for optional columns.
func (s Set[V]) First() V {
	if len(s) == 0 {
		var zero V
		return zero
	}
	return s[0]
}

// UUID is a column of type uuid: `["uuid", "…"]`.
type UUID string

// UnmarshalJSON implements json.Unmarshaler.
func (u *UUID) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, &[]any{new(string), (*string)(u)}); err != nil {
		return fmt.Errorf("decode a UUID: %w", err)
	}
	return nil
}
