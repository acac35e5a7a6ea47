// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reservation

import (
	"sync"
	"time"
)

// WakeDelay gathers changes of a subnet's use before those are tried again that wait for one.
const WakeDelay = 100 * time.Millisecond

// Waiting are the objects that wait for the use of a subnet's addresses to change. The zero value is ready.
type Waiting struct {
	mu       sync.Mutex
	subnets  map[string]string
	bySubnet map[string]map[string]struct{}
}

// Add has an object wait. Call it before looking at what it waits for, so that no change is missed.
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

// Remove has an object wait no more.
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

// In are those that wait for a subnet.
func (w *Waiting) In(subnet string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := make([]string, 0, len(w.bySubnet[subnet]))
	for name := range w.bySubnet[subnet] {
		names = append(names, name)
	}
	return names
}
