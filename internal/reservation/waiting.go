// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reservation

import (
	"sync"
	"time"
)

// WakeDelay is the delay after a change in a subnet's use before waiting objects are retried. Changes in that time trigger one
// retry.
const WakeDelay = 100 * time.Millisecond

// Waiting holds the objects that wait for a change in the use of a subnet's addresses. The zero value is ready.
type Waiting struct {
	mu       sync.Mutex
	subnets  map[string]string
	bySubnet map[string]map[string]struct{}
}

// Add registers an object as waiting. Call it before reading the state that it waits for, or a change can be missed.
func (w *Waiting) Add(subnet, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(name)
	if w.subnets == nil {
		w.subnets, w.bySubnet = map[string]string{}, map[string]map[string]struct{}{}
	}
	if w.bySubnet[subnet] == nil {
		w.bySubnet[subnet] = map[string]struct{}{}
	}
	w.subnets[name] = subnet
	w.bySubnet[subnet][name] = struct{}{}
}

// Remove unregisters an object.
func (w *Waiting) Remove(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(name)
}

func (w *Waiting) drop(name string) {
	subnet := w.subnets[name]
	delete(w.subnets, name)
	if delete(w.bySubnet[subnet], name); len(w.bySubnet[subnet]) == 0 {
		delete(w.bySubnet, subnet)
	}
}

// In returns the objects that wait for a subnet.
func (w *Waiting) In(subnet string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := make([]string, 0, len(w.bySubnet[subnet]))
	for name := range w.bySubnet[subnet] {
		names = append(names, name)
	}
	return names
}
