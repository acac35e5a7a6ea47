// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"slices"
	"testing"
)

// TestTablesThatNameAnInterface reads output of `nft --json list ruleset`.
func TestTablesThatNameAnInterface(t *testing.T) {
	table := func(objects string) string {
		return `{"nftables": [{"metainfo": {"version": "1.1.3", "json_schema_version": 1}}, {"table": {"family": "inet", "name": "eth0", "handle": 1}}, ` + objects + `]}`
	}
	rule := func(table, expr string) string {
		return `{"rule": {"family": "inet", "table": "` + table + `", "chain": "input", "handle": 5, "comment": "eth0", "expr": [` + expr + `]}}`
	}
	match := func(right string) string {
		return `{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": ` + right + `}}, {"drop": null}`
	}
	for _, tt := range []struct {
		name, objects string
		want          []string
	}{
		{"no rule", rule("a", `{"accept": null}`), nil},
		{"one name", rule("a", match(`"eth0"`)), []string{"table inet a of nftables"}},
		{"a set", rule("a", match(`{"set": ["eth1", "eth0"]}`)), []string{"table inet a of nftables"}},
		{"a pattern", rule("a", match(`"eth*"`)), []string{"table inet a of nftables"}},
		{"a pattern of both", rule("a", match(`"*"`)), nil},
		{"another name", rule("a", match(`"eth01"`)), nil},
		{"both names, in two rules", rule("a", match(`"eth0"`)) + "," + rule("a", match(`"br-net1"`)), nil},
		{"both names, in two tables", rule("a", match(`"br-net1"`)) + "," + rule("b", match(`"eth0"`)), []string{"table inet b of nftables"}},
		{"a map", rule("a", `{"vmap": {"key": {"meta": {"key": "iifname"}}, "data": {"set": [["eth0", {"jump": {"target": "x"}}]]}}}`), []string{"table inet a of nftables"}},
		{"a named set", `{"set": {"family": "inet", "name": "s", "table": "a", "type": "ifname", "handle": 2, "elem": ["eth0"]}}`, []string{"table inet a of nftables"}},
		{
			"the device of a chain", `{"chain": {"family": "netdev", "table": "a", "name": "in", "handle": 1, "dev": "eth0", "type": "filter", "hook": "ingress", "prio": 0, "policy": "accept"}}`,
			[]string{"table netdev a of nftables"},
		},
		{"a table of Kiln", rule("kiln", match(`"eth0"`)), nil},
	} {
		found := namings{name: "eth0", bridge: "br-net1", at: map[string]*naming{}}
		if err := found.readNFT([]byte(table(tt.objects))); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := found.only(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
