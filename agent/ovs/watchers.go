// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import "sync"

// watchers wakes those who wait for a row of a name. The zero value is ready.
type watchers struct {
	mu          sync.Mutex
	byName      map[string]map[chan struct{}]struct{}
	subscribers []func(string)
}

// watch returns a channel that has an element after each change of name, and a function to call in the end. Several changes may
// leave one element: the watcher looks at the row, not at the change.
func (w *watchers) watch(name string) (<-chan struct{}, func()) {
	changed := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byName == nil {
		w.byName = map[string]map[chan struct{}]struct{}{}
	}
	if w.byName[name] == nil {
		w.byName[name] = map[chan struct{}]struct{}{}
	}
	w.byName[name][changed] = struct{}{}
	return changed, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.byName[name], changed)
		if len(w.byName[name]) == 0 {
			delete(w.byName, name)
		}
	}
}

func (w *watchers) subscribe(f func(string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subscribers = append(w.subscribers, f)
}

func (w *watchers) signal(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for changed := range w.byName[name] {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, f := range w.subscribers {
		f(name)
	}
}
