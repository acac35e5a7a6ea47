// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"sync"

	"github.com/ovn-kubernetes/libovsdb/model"

	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// watchers wakes goroutines that wait for a row of a name. The zero value is ready.
type watchers struct {
	mu          sync.Mutex
	byName      map[string]map[chan struct{}]struct{}
	subscribers []func(string)
	deleted     []func(Attachment)
}

// watch returns a channel that receives an element after each change of name, and a function that ends the watch. Several changes may be
// merged into one element, so the watcher must read the row.
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

func (w *watchers) subscribeDeleted(f func(Attachment)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deleted = append(w.deleted, f)
}

// signalDeleted passes a deleted row on, if it belonged to a pod.
func (w *watchers) signalDeleted(row model.Model) {
	iface, ok := row.(*vswitch.Interface)
	if !ok {
		return
	}
	a, ok := attachmentOf(iface)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.deleted {
		f(a)
	}
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
