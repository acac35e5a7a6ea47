// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler

import "sync"

// Reports holds the last report about each object, so that a reconciler sends an event only when the report changes. The zero value of R
// means that there is nothing to report, and uses no memory. The zero value of Reports is ready for use.
type Reports[K, R comparable] struct {
	mu   sync.Mutex
	last map[K]R
}

// Swap stores the report about an object and returns the previous one.
func (r *Reports[K, R]) Swap(key K, report R) (before R) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.last[key]
	var none R
	switch {
	case report == before:
	case report == none:
		delete(r.last, key)
	case r.last == nil:
		r.last = map[K]R{key: report}
	default:
		r.last[key] = report
	}
	return before
}

// New stores the report about an object. It returns true if there is something to report that differs from the previous report.
func (r *Reports[K, R]) New(key K, report R) bool {
	var none R
	return r.Swap(key, report) != report && report != none
}

// Forget deletes the report about an object that no longer exists.
func (r *Reports[K, R]) Forget(key K) {
	var none R
	r.Swap(key, none)
}
