// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package intern shares one copy of values that thousands of objects have in common: names of nodes and subnets, keys of
// annotations, whole label sets. It imports no other package of this module.
package intern

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync"
)

// Number of places in a table. A value that many objects share is used again before values of single objects displace it.
const (
	stringPlaces = 4096
	setPlaces    = 1024
)

// table is a cache with one place per hash value, so that its size is bounded.
type table[T any] struct {
	mu     sync.Mutex
	places []T
}

var (
	seed       = maphash.MakeSeed()
	allStrings = table[string]{places: make([]string, stringPlaces)}
	allSets    = table[map[string]string]{places: make([]map[string]string, setPlaces)}
)

// String returns a string equal to s: the copy that an earlier call returned, if it is still in the table.
func String(s string) string {
	if s == "" {
		return ""
	}
	place := &allStrings.places[maphash.String(seed, s)%stringPlaces]
	allStrings.mu.Lock()
	defer allStrings.mu.Unlock()
	if *place != s {
		*place = strings.Clone(s) // s may be part of a large string
	}
	return *place
}

// Bytes is String for bytes. The caller may reuse b afterwards.
func Bytes(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	place := &allStrings.places[maphash.Bytes(seed, b)%stringPlaces]
	allStrings.mu.Lock()
	defer allStrings.mu.Unlock()
	if *place != string(b) {
		*place = string(b)
	}
	return *place
}

// Set returns a map that equals m. It is shared and must not be changed. For an empty map it returns nil.
func Set(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	var hash uint64 // of all entries, in any order
	for key, value := range m {
		hash += maphash.String(seed, key) ^ 31*maphash.String(seed, value)
	}
	place := &allSets.places[hash%setPlaces]
	allSets.mu.Lock()
	defer allSets.mu.Unlock()
	if !maps.Equal(*place, m) {
		*place = make(map[string]string, len(m))
		for key, value := range m {
			(*place)[String(key)] = String(value)
		}
	}
	return *place
}

// Pack moves strings that belong to a single object into one new block of memory. Strings that are decoded one by one between
// temporary data would otherwise prevent that memory from being reused.
func Pack(all ...*string) {
	size := 0
	for _, s := range all {
		size += len(*s)
	}
	var packed strings.Builder
	packed.Grow(size)
	for _, s := range all {
		packed.WriteString(*s)
	}
	rest := packed.String()
	for _, s := range all {
		*s, rest = rest[:len(*s)], rest[len(*s):]
	}
}
