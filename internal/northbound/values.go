// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// get returns a column's value in a model.
func (c column) get(model any) any { return reflect.ValueOf(model).Elem().Field(c.field).Interface() }

// equal compares two values of the column as the database does: sets are unordered, and nil equals empty.
func (c column) equal(a, b any) bool {
	switch a := a.(type) {
	case string:
		return a == b.(string)
	case []string:
		return equalSets(a, b.([]string))
	case []int:
		return equalSets(a, b.([]int))
	case map[string]string:
		return maps.Equal(a, b.(map[string]string))
	case map[string]int:
		return maps.Equal(a, b.(map[string]int))
	case *string:
		return equalOptional(a, b.(*string))
	case *int:
		return equalOptional(a, b.(*int))
	case *bool:
		return equalOptional(a, b.(*bool))
	default:
		return a == b
	}
}

// checkText returns an error for text that an OVSDB string cannot hold (RFC 7047, section 3.1: UTF-8 without the null
// character). ovsdb-server closes the connection on a null character, and encoding/json replaces invalid UTF-8.
func checkText(value any) error {
	bad := func(s string) bool { return strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s) }
	var found string
	switch v := value.(type) {
	case string:
		found = v
	case *string:
		if v != nil {
			found = *v
		}
	case []string:
		if i := slices.IndexFunc(v, bad); i >= 0 {
			found = v[i]
		}
	case map[string]string:
		for key, text := range v {
			if bad(key) || bad(text) {
				found = key + "=" + text
			}
		}
	}
	if bad(found) {
		return fmt.Errorf("text %.100q has a null character, or is not UTF-8", found)
	}
	return nil
}

func equalOptional[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func equalSets[T string | int](a, b []T) bool {
	if slices.Equal(a, b) {
		return true
	}
	return slices.Equal(sorted(a), sorted(b))
}

// sorted returns the distinct values of a set, in order.
func sorted[T string | int](set []T) []T {
	set = slices.Clone(set)
	slices.Sort(set)
	return slices.Compact(set)
}

// empty reports whether a value is the default that the database gives a column that is not in an insert.
func (c column) empty(value any) bool {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// wire returns a value in the form that operations use.
func (c column) wire(value any) (any, error) {
	switch v := value.(type) {
	case map[string]string:
		return stringMap(v), nil
	case []string:
		value = sorted(v)
	}
	wire, err := ovsdb.NativeToOvs(c.schema, value)
	if err != nil {
		return nil, fmt.Errorf("column %s: %w", c.name, err)
	}
	return wire, nil
}

// stringMap is a map in the form that operations use. libovsdb's encoder uses reflection and a map of interfaces.
type stringMap map[string]string

// MarshalJSON returns ["map", [[key, value], …]] (RFC 7047, section 5.1).
func (m stringMap) MarshalJSON() ([]byte, error) {
	pairs := make([][2]string, 0, len(m))
	for key, value := range m {
		pairs = append(pairs, [2]string{key, value})
	}
	return json.Marshal([]any{"map", pairs})
}

// references returns UUIDs as a value of the column, which holds one reference, an optional one, or a set.
func (c column) references(uuids []string) (any, error) {
	switch c.schema.Type {
	case ovsdb.TypeSet:
		if c.schema.TypeObj.Max() != 1 {
			return uuids, nil
		}
		switch len(uuids) {
		case 0:
			return (*string)(nil), nil
		case 1:
			return &uuids[0], nil
		}
	case ovsdb.TypeUUID:
		if len(uuids) == 1 {
			return uuids[0], nil
		}
	}
	return nil, fmt.Errorf("column %s cannot hold %d references", c.name, len(uuids))
}
