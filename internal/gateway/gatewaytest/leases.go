// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gatewaytest has a fake of the Leases of gateway nodes.
package gatewaytest

import (
	"maps"
	"slices"
	"sync"

	"github.com/kiln-net/kiln/internal/gateway"
)

// Leases is a gateway.Leases whose states tests set. The zero value is ready.
type Leases struct {
	mu          sync.Mutex
	states      map[string]gateway.LeaseState
	expected    map[string]bool
	subscribers []func(string)
}

// Of returns the state that was set.
func (l *Leases) Of(node string) gateway.LeaseState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.states[node]
}

// Expect records a node for Expecting.
func (l *Leases) Expect(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expected == nil {
		l.expected = map[string]bool{}
	}
	l.expected[node] = true
}

// Expecting returns the nodes whose Leases are expected, sorted.
func (l *Leases) Expecting() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.expected))
}

// Subscribe registers a function that Set calls.
func (l *Leases) Subscribe(f func(node string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscribers = append(l.subscribers, f)
}

// Set sets the state of a node.
func (l *Leases) Set(node string, state gateway.LeaseState) {
	l.mu.Lock()
	if l.states == nil {
		l.states = map[string]gateway.LeaseState{}
	}
	l.states[node] = state
	subscribers := slices.Clone(l.subscribers)
	l.mu.Unlock()
	for _, f := range subscribers {
		f(node)
	}
}
