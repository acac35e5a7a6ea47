// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestArrange(t *testing.T) {
	parse := func(text string) []netip.AddrPort {
		var out []netip.AddrPort
		for _, name := range strings.Fields(text) {
			out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, name[0]}), 80))
		}
		return out
	}
	for name, c := range map[string]struct {
		old, here, all, want string
		local                int
	}{
		"from nothing, this node's first":        {"", "c", "a b c", "c a b", 1},
		"the last one fills a hole":              {"a b c d", "", "a c d", "a d c", 0},
		"what stays keeps its slot":              {"d c b a", "", "a b c d", "d c b a", 0},
		"one that comes is the last":             {"b c", "", "a b c", "b c a", 0},
		"one of this node moves another":         {"a b c", "d", "a b c d", "d b c a", 1},
		"one of this node goes":                  {"d b c a", "", "a b c", "a b c", 0},
		"the same endpoint in two slices is one": {"", "", "a a b", "a b", 0},
		"all go":                                 {"a b", "", "", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			slots, local := arrange(parse(c.old), parse(c.here), parse(c.all))
			if fmt.Sprint(slots) != fmt.Sprint(parse(c.want)) || local != c.local {
				t.Errorf("%v, %d local; want %v, %d", slots, local, parse(c.want), c.local)
			}
		})
	}
}
