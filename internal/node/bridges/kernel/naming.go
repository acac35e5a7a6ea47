// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// Naming returns the routing rules and the tables of nftables that name an interface and not its bridge. They would no longer apply to packets
// of the node once the bridge has the addresses of the interface. Rules and tables of Kiln follow by themselves. Tables of iptables-legacy cannot be read.
func Naming(ctx context.Context, name, bridge string) ([]string, error) {
	found := namings{name: name, bridge: bridge, at: map[string]*naming{}}
	rules, err := Whole(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	for _, r := range rules {
		found.note("ip rule", r.IifName)
		found.note("ip rule", r.OifName)
	}
	// The library that Kiln writes nftables with runs this program, too, and cannot list tables of others.
	listed, err := exec.CommandContext(ctx, "nft", "--json", "list", "ruleset").Output()
	if err != nil {
		return nil, fmt.Errorf("list the rules of nftables: %w", err)
	}
	if err := found.readNFT(listed); err != nil {
		return nil, fmt.Errorf("list the rules of nftables: %w", err)
	}
	return found.only(), nil
}

// naming says which of two interfaces a rule or a table names.
type naming struct{ name, bridge bool }

type namings struct {
	name, bridge string
	at           map[string]*naming
	order        []string
}

// note records that a rule or a table names an interface. A name that ends with an asterisk stands for all that begin with it.
func (n *namings) note(place, interfaceName string) {
	is := func(name string) bool {
		prefix, wild := strings.CutSuffix(interfaceName, "*")
		return interfaceName == name || wild && strings.HasPrefix(name, prefix)
	}
	if !is(n.name) && !is(n.bridge) {
		return
	}
	at := n.at[place]
	if at == nil {
		at = &naming{}
		n.at[place] = at
		n.order = append(n.order, place)
	}
	at.name, at.bridge = at.name || is(n.name), at.bridge || is(n.bridge)
}

// only returns the places that name the interface and not the bridge.
func (n *namings) only() []string {
	return slices.DeleteFunc(n.order, func(place string) bool { return !n.at[place].name || n.at[place].bridge })
}

// ownTables begin with this name. They name interfaces where the node's state is, and follow it.
const ownTables = "kiln"

// readNFT reads the output of `nft --json list ruleset` (libnftables-json(5)).
func (n *namings) readNFT(listed []byte) error {
	var ruleset struct {
		Nftables []map[string]json.RawMessage `json:"nftables"`
	}
	if err := json.Unmarshal(listed, &ruleset); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	for _, object := range ruleset.Nftables {
		for _, raw := range object {
			var part struct {
				Family, Table   string
				Dev, Expr, Elem any // a chain's device, a rule's expressions, a set's elements
			}
			if err := json.Unmarshal(raw, &part); err != nil {
				return fmt.Errorf("decode: %w", err)
			}
			if strings.HasPrefix(part.Table, ownTables) {
				continue
			}
			place := "table " + part.Family + " " + part.Table + " of nftables"
			for _, value := range []any{part.Dev, part.Expr, part.Elem} {
				eachString(value, func(s string) { n.note(place, s) })
			}
		}
	}
	return nil
}

// eachString calls f with each string of a JSON value, but not with keys.
func eachString(value any, f func(string)) {
	switch v := value.(type) {
	case string:
		f(v)
	case []any:
		for _, item := range v {
			eachString(item, f)
		}
	case map[string]any:
		for _, item := range v {
			eachString(item, f)
		}
	}
}
