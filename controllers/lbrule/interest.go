// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import "sync"

// interest records which rules depend on which objects. Keys are `vip/…`, `vpc/…`, `namespace/…`, `switch/…` (a subnet that is named) and
// `use/…` (the holders of addresses of a subnet).
type interest struct {
	mu    sync.Mutex
	rules map[string]map[string]bool // by key
	keys  map[string]map[string]bool // by rule
}

func (i *interest) add(rule, key string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.rules == nil {
		i.rules, i.keys = map[string]map[string]bool{}, map[string]map[string]bool{}
	}
	put(i.rules, key, rule)
	put(i.keys, rule, key)
}

// prune removes the keys of a rule that are not in keep.
func (i *interest) prune(rule string, keep map[string]bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for key := range i.keys[rule] {
		if !keep[key] {
			drop(i.rules, key, rule)
			drop(i.keys, rule, key)
		}
	}
}

// of returns the rules that depend on the object of a key.
func (i *interest) of(key string) []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	rules := make([]string, 0, len(i.rules[key]))
	for rule := range i.rules[key] {
		rules = append(rules, rule)
	}
	return rules
}

func put(m map[string]map[string]bool, a, b string) {
	if m[a] == nil {
		m[a] = map[string]bool{}
	}
	m[a][b] = true
}

func drop(m map[string]map[string]bool, a, b string) {
	if delete(m[a], b); len(m[a]) == 0 {
		delete(m, a)
	}
}
