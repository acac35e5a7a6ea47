// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"slices"
	"testing"
)

func TestRulesAreFoundByTheKeysThatTheyUse(t *testing.T) {
	var i interest
	expect := func(key string, want ...string) {
		t.Helper()
		if got := slices.Sorted(slices.Values(i.of(key))); !slices.Equal(got, want) {
			t.Errorf("%s is used by %v, want %v", key, got, want)
		}
	}
	expect("vpc/blue")
	for _, rule := range []string{"a", "b", "a"} {
		i.add(rule, "vpc/blue")
	}
	i.add("a", "use/shop")
	expect("vpc/blue", "a", "b")

	i.prune("a", map[string]bool{"use/shop": true, "vpc/never-used": true})
	expect("vpc/blue", "b")
	expect("use/shop", "a")
	expect("vpc/never-used")
	i.prune("c", nil)
	expect("vpc/blue", "b")

	i.prune("a", nil)
	i.prune("b", nil)
	if len(i.rules)+len(i.keys) != 0 {
		t.Errorf("after the last rule there are %v and %v", i.rules, i.keys)
	}
}
