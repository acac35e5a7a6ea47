// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func addrs(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func TestTheFirstClaimOfAnAddressWins(t *testing.T) {
	var c claims
	both := addrs("192.0.2.1", "2001:db8::1")
	for _, step := range []struct {
		name    string
		address netip.Addr
		node    string
		holder  string
	}{
		{"a free address", both[0], "a", ""},
		{"the holder's own", both[0], "a", ""},
		{"of another node", both[0], "b", "a"},
		{"a second address", both[1], "a", ""},
	} {
		c.claim(step.node, both)
		if holder := c.take(step.address, step.node); holder != step.holder {
			t.Errorf("%s: %q, want %q", step.name, holder, step.holder)
		}
	}
	c.claim("c", both) // which may not have it
	if waiting := c.waiting(both[0]); !slices.Equal(waiting, []string{"b"}) {
		t.Errorf("%q wait for the address of a", waiting)
	}
	if others := c.keep("a", both[1:]); !slices.Equal(others, []string{"b", "c"}) {
		t.Errorf("%q claim the released address", others)
	}
	if holder := c.take(both[0], "b"); holder != "" {
		t.Errorf("a released address is still held by %q", holder)
	}
	c.claim("b", both)
	if waiting := c.waiting(both[0]); len(waiting) > 0 {
		t.Errorf("%q wait for the address that b has", waiting)
	}
	for _, node := range []string{"a", "b", "c"} {
		c.forget(node)
	}
	if n := len(c.holder) + len(c.held) + len(c.claimed) + len(c.claimants) + len(c.index); n > 0 {
		t.Errorf("after all nodes are deleted: %+v", &c)
	}
}

func TestNodesThatClaimAnAddressInANetwork(t *testing.T) {
	var c claims
	c.claim("a", addrs("192.0.2.1", "2001:db8::1"))
	c.claim("b", addrs("192.0.2.255"))
	c.claim("c", addrs("192.0.3.0", "2001:db8::1"))
	c.claim("moved", addrs("192.0.2.7", "198.51.100.1"))
	c.claim("moved", addrs("198.51.100.1"))
	for prefixes, want := range map[string]string{
		"192.0.2.0/24":               "[a b]",
		"192.0.2.0/23":               "[a b c]",
		"192.0.2.255/32":             "[b]",
		"192.0.2.7/32":               "[]",
		"198.51.100.0/24":            "[moved]",
		"0.0.0.0/0":                  "[a b c moved]",
		"2001:db8::/64":              "[a c]",
		"::/0":                       "[a c]",
		"10.0.0.0/8 2001:db8:1::/48": "[]",
		"192.0.2.0/25 2001:db8::/64": "[a c]",
	} {
		var list []netip.Prefix
		for text := range strings.FieldsSeq(prefixes) {
			list = append(list, netip.MustParsePrefix(text))
		}
		if got := fmt.Sprint(c.inside(list)); got != want {
			t.Errorf("%s: %s, want %s", prefixes, got, want)
		}
	}
}

func TestAddressesOfAPIServersAreRememberedForAnHour(t *testing.T) {
	var s apiServers
	begin, both := time.Now(), addrs("192.0.2.1", "2001:db8::1")
	s.saw(both, begin)
	s.saw(both[:1], begin.Add(time.Minute))
	for _, address := range both {
		if !s.lately(address, begin.Add(absence-time.Second)) {
			t.Errorf("%s is forgotten within an hour", address)
		}
	}
	if s.lately(both[1], begin.Add(absence)) || !s.lately(both[0], begin.Add(absence)) {
		t.Error("an hour begins when the address is an endpoint for the last time")
	}
	if s.saw(nil, begin.Add(2*absence)); len(s.seen) > 0 {
		t.Errorf("still known after two hours: %v", s.seen)
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
