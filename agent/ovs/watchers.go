// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"sync"

	"github.com/ovn-kubernetes/libovsdb/model"

	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// watchers wakes goroutines that wait for a row of a name. The zero value is ready.
type watchers struct {
	mu          sync.Mutex
	byName      interest.Index[chan struct{}, string]
	subscribers []func(string)
	deleted     []func(Attachment)
}

// watch returns a channel that receives an element after each change of name, and a function that ends the watch. Several changes may be
// merged into one element, so the watcher must read the row.
func (w *watchers) watch(name string) (<-chan struct{}, func()) {
	changed := make(chan struct{}, 1)
	w.byName.Add(changed, name)
	return changed, func() { w.byName.Set(changed) }
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
	for _, changed := range w.byName.Of(name) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.subscribers {
		f(name)
	}
}
