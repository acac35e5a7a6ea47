// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import "testing"

func TestSchemaVersionsAreComparedAsNumbers(t *testing.T) {
	for _, c := range []struct {
		name, a, b string
		older      bool
	}{
		{"the same version", "7.1.0", "7.1.0", false},
		{"an older version", "7.1.0", "7.2.0", true},
		{"a newer version", "7.2.0", "7.1.0", false},
		{"a number with more digits", "7.9.0", "7.10.0", true},
		{"an unknown version", "", "7.1.0", false},
	} {
		if got := olderSchema(c.a, c.b); got != c.older {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
