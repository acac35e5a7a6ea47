// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package intern keeps one copy of what thousands of objects have in common: names of nodes and subnets, keys of annotations, whole
// sets of labels. It is a leaf.
package intern

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync"
)

// Places of a table. What many objects have comes again before it is displaced by what they have alone.
const (
	stringPlaces = 4096
	setPlaces    = 1024
)

// table is a cache with one place per hash value: its size is bounded, whatever comes by.
type table[T any] struct {
	mu     sync.Mutex
	places []T
}

var (
	seed       = maphash.MakeSeed()
	allStrings = table[string]{places: make([]string, stringPlaces)}
	allSets    = table[map[string]string]{places: make([]map[string]string, setPlaces)}
)

// String returns s, as the copy that an earlier call returned if that one is remembered.
func String(s string) string {
	if s == "" {
		return ""
	}
	place := &allStrings.places[maphash.String(seed, s)%stringPlaces]
	allStrings.mu.Lock()
	defer allStrings.mu.Unlock()
	if *place != s {
		*place = strings.Clone(s) // s may be a part of something large
	}
	return *place
}

// Bytes is String of bytes, which may be used again afterwards.
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

// Set returns a map that equals m and must not be changed: others have the same one. Maps without entries are nil.
func Set(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	var hash uint64 // of all entries in any order
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

// Pack moves strings that one object has alone to memory of their own, all together: decoded one by one among what is thrown away, they
// keep that memory from being used again.
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
