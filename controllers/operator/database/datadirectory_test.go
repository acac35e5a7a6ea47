// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import (
	"slices"
	"testing"
)

func TestNextDirectories(t *testing.T) {
	for _, tt := range []struct {
		name     string
		recorded []string
		want     string
		done     bool
		next     []string
		other    string
	}{
		{"nothing changes", []string{"/a"}, "/a", true, []string{"/a"}, ""},
		{"a change begins", []string{"/a"}, "/b", true, []string{"/a", "/b"}, "/a"},
		{"members move", []string{"/a", "/b"}, "/b", false, []string{"/a", "/b"}, "/a"},
		{"all members have moved", []string{"/a", "/b"}, "/b", true, []string{"/b"}, ""},
		{"members move back", []string{"/a", "/b"}, "/a", false, []string{"/a", "/b"}, "/b"},
		{"all members have moved back", []string{"/a", "/b"}, "/a", true, []string{"/a"}, ""},
		{"a third directory waits", []string{"/a", "/b"}, "/c", true, []string{"/a", "/b"}, "/a"},
	} {
		next := nextDirectories(tt.recorded, tt.want, tt.done)
		if other := OtherDirectory(next, tt.want); !slices.Equal(next, tt.next) || other != tt.other {
			t.Errorf("%s: got %q, and %q is the other one", tt.name, next, other)
		}
	}
}
