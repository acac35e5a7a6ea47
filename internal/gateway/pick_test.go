// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"testing"
)

func TestPick(t *testing.T) {
	nodes := func(states string) []Candidate {
		var out []Candidate
		for i, s := range states {
			if s != ' ' {
				out = append(out, Candidate{Name: string(rune('a' + i)), State: map[rune]State{'s': Serving, 'u': Unproven, 'c': Cordoned, 'd': Down}[s]})
			}
		}
		return out
	}
	for _, tt := range []struct {
		name, states  string
		current, want Pair
	}{
		{"stays though others serve", "ssss", Pair{"a", "b"}, Pair{"a", "b"}},
		{"stays while its state is unknown", "uuss", Pair{"a", "b"}, Pair{"a", "b"}},
		{"moves to its standby when it is down", "dss", Pair{"a", "b"}, Pair{"b", "c"}},
		{"moves to its standby when it is cordoned", "cs", Pair{"a", "b"}, Pair{"b", "a"}},
		{"moves past a standby that is down, too", "dds", Pair{"a", "b"}, Pair{"c", ""}},
		{"moves when it is deleted", " ss", Pair{"a", "b"}, Pair{"b", "c"}},
		{"replaces a standby that is down", "sds", Pair{"a", "b"}, Pair{"a", "c"}},
		{"stays where it is when all are down", "ddd", Pair{"a", "b"}, Pair{"a", ""}},
		{"is none when all are down and its node is deleted", " dd", Pair{"a", "b"}, Pair{}},
		{"prefers a serving node to an unknown one", "us", Pair{}, Pair{"b", "a"}},
		{"takes a cordoned node when there is no other", "cd", Pair{}, Pair{"a", ""}},
		{"is none without nodes", "", Pair{"a", "b"}, Pair{}},
		{"is alone on one node", "s", Pair{}, Pair{"a", ""}},
	} {
		if got := Pick("vpc", nodes(tt.states), tt.current); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestPickSpreadsVpcs(t *testing.T) {
	var nodes []Candidate
	for i := range 10 {
		nodes = append(nodes, Candidate{Name: fmt.Sprint("worker-", i)})
	}
	carried := map[string]int{}
	for i := range 1000 {
		carried[Pick(fmt.Sprint("vpc-", i), nodes, Pair{}).Active]++
	}
	for _, n := range nodes {
		if carried[n.Name] < 60 || carried[n.Name] > 140 {
			t.Errorf("%s carries %d of 1000 VPCs; 10 nodes share them: %v", n.Name, carried[n.Name], carried)
		}
	}
}

func TestAPairThatFitsIsPickedAgain(t *testing.T) {
	states := []State{Serving, Unproven, Cordoned, Down}
	for _, a := range states {
		for _, b := range states {
			current := Pair{"a", "b"}
			of := map[string]State{"a": a, "b": b}
			candidates := []Candidate{{"a", a}, {"b", b}, {"c", Serving}, {"d", Serving}}
			if current.Fits(func(n string) State { return of[n] }) && Pick("vpc", candidates, current) != current {
				t.Errorf("a pair in states %d and %d fits, and is not picked", a, b)
			}
		}
	}
}
