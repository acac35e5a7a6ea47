// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package interest finds the objects that a change concerns.
package interest

import (
	"maps"
	"slices"
	"sync"
)

// Index records which objects wait for, or depend on, which keys. Register an object before reading the state that it depends on, or a change can be
// missed. The zero value is ready. Its methods may be called concurrently.
type Index[O, K comparable] struct {
	mu      sync.Mutex
	objects map[K]map[O]struct{}
	keys    map[O]map[K]struct{}
}

// Add adds a key to the keys of an object.
func (x *Index[O, K]) Add(object O, key K) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(object, key)
}

// Remove removes a key from the keys of an object.
func (x *Index[O, K]) Remove(object O, key K) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(object, key)
	if delete(x.keys[object], key); len(x.keys[object]) == 0 {
		delete(x.keys, object)
	}
}

// Set replaces the keys of an object. Without keys it removes the object.
func (x *Index[O, K]) Set(object O, keys ...K) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key := range x.keys[object] {
		x.drop(object, key)
	}
	delete(x.keys, object)
	for _, key := range keys {
		x.add(object, key)
	}
}

func (x *Index[O, K]) drop(object O, key K) {
	if delete(x.objects[key], object); len(x.objects[key]) == 0 {
		delete(x.objects, key)
	}
}

func (x *Index[O, K]) add(object O, key K) {
	if x.objects == nil {
		x.objects, x.keys = map[K]map[O]struct{}{}, map[O]map[K]struct{}{}
	}
	put(x.objects, key, object)
	put(x.keys, object, key)
}

func put[A, B comparable](m map[A]map[B]struct{}, a A, b B) {
	if m[a] == nil {
		m[a] = map[B]struct{}{}
	}
	m[a][b] = struct{}{}
}

// Of returns the objects with a key, in no order.
func (x *Index[O, K]) Of(key K) []O {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.AppendSeq(make([]O, 0, len(x.objects[key])), maps.Keys(x.objects[key]))
}

// Any reports whether an object has the key.
func (x *Index[O, K]) Any(key K) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.objects[key]) > 0
}

// Len returns the number of objects that have keys.
func (x *Index[O, K]) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.keys)
}
