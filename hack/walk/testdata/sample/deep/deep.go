// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deep has the ends of the walks.
package deep

// Store is written by Apply.
type Store struct{ n int }

// Apply is the end of a walk.
func (s *Store) Apply() { s.n++ }

// Count is on no way.
func Count() {}
