// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestTheFirstClaimOfAnAddressWins(t *testing.T) {
	var c claims
	lives, ended := func(string) bool { return false }, func(string) bool { return true }
	address, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, step := range []struct {
		name    string
		address netip.Addr
		node    string
		ended   func(string) bool
		taken   bool
		holder  string
	}{
		{"a free address", address, "a", lives, true, ""},
		{"the holder's own", address, "a", lives, true, ""},
		{"of a node that exists", address, "b", lives, false, "a"},
		{"a second address", other, "a", lives, true, ""},
		{"of a node whose claim has ended", address, "b", ended, true, "a"},
		{"of its new holder", address, "a", lives, false, "b"},
	} {
		if taken, holder := c.take(step.address, step.node, step.ended); taken != step.taken || holder != step.holder {
			t.Errorf("%s: %v, %q, want %v, %q", step.name, taken, holder, step.taken, step.holder)
		}
	}
	if waiting := c.keep("b", nil); !slices.Equal(waiting, []string{"a"}) {
		t.Errorf("%q wait for the released address", waiting)
	}
	if taken, holder := c.take(address, "a", lives); !taken {
		t.Errorf("a released address is still held by %q", holder)
	}
	if waiting := c.forget("a"); len(waiting) > 0 {
		t.Errorf("%q wait for the addresses of the last node", waiting)
	}
	if len(c.holder) > 0 || len(c.of) > 0 {
		t.Errorf("after all nodes are deleted: %v, %v", c.holder, c.of)
	}
}

func TestANodeHasAtMostOneEventAMinute(t *testing.T) {
	var c claims
	begin := time.Now()
	for _, step := range []struct {
		name  string
		text  string
		after time.Duration
		due   bool
	}{
		{"no problem", "", 0, false},
		{"the first problem", "a", 0, true},
		{"the same one, later", "a", time.Hour, false},
		{"another one", "b", time.Hour, true},
		{"a third one, too early", "c", time.Hour + 59*time.Second, false},
		{"a third one", "c", time.Hour + time.Minute, true},
		{"solved", "", time.Hour + 61*time.Second, false},
		{"the same problem again, too early", "c", time.Hour + 62*time.Second, false},
		{"solved, later", "", 2 * time.Hour, false},
		{"the same problem again", "c", 2 * time.Hour, true},
	} {
		if got := c.report("n", step.text, begin.Add(step.after)); got != step.due {
			t.Errorf("%s: %v, want %v", step.name, got, step.due)
		}
	}
}
