// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package interest

import (
	"slices"
	"strings"
	"testing"
)

func TestIndexFindsObjectsByTheirKeys(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(x *Index[string, int])
		want [3]string // the objects with keys 1, 2 and 3
		n    int
	}{
		{"nothing", func(*Index[string, int]) {}, [3]string{}, 0},
		{"two objects with a key", func(x *Index[string, int]) { x.Add("a", 1); x.Add("b", 1); x.Add("a", 1) }, [3]string{"a b"}, 2},
		{"an object with two keys", func(x *Index[string, int]) { x.Add("a", 1); x.Set("b", 3); x.Add("a", 3) }, [3]string{"a", "", "a b"}, 2},
		{"keys are replaced", func(x *Index[string, int]) { x.Set("a", 1, 2); x.Set("b", 1); x.Set("a", 2, 3, 3) }, [3]string{"b", "a", "a"}, 2},
		{"a key is removed", func(x *Index[string, int]) { x.Set("a", 1, 2); x.Set("b", 2); x.Remove("a", 2); x.Remove("b", 1) }, [3]string{"a", "b"}, 2},
		{"the last key is removed", func(x *Index[string, int]) { x.Add("a", 1); x.Remove("a", 1); x.Remove("c", 3) }, [3]string{}, 0},
		{"an object is removed", func(x *Index[string, int]) { x.Set("a", 1, 2); x.Add("b", 2); x.Set("a"); x.Set("c") }, [3]string{"", "b"}, 1},
		{"all are removed", func(x *Index[string, int]) { x.Set("a", 1, 2); x.Add("a", 3); x.Set("a") }, [3]string{}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var x Index[string, int]
			tt.do(&x)
			keys := 0
			for i, want := range tt.want {
				got := strings.Join(slices.Sorted(slices.Values(x.Of(i+1))), " ")
				if got != want || x.Any(i+1) != (want != "") {
					t.Errorf("key %d: objects %q, any %t, want %q", i+1, got, x.Any(i+1), want)
				}
				if want != "" {
					keys++
				}
			}
			if x.Len() != tt.n || len(x.keys) != tt.n || len(x.objects) != keys {
				t.Errorf("%d objects, want %d; the maps hold %v and %v", x.Len(), tt.n, x.keys, x.objects)
			}
		})
	}
}
