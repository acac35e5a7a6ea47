// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"context"
	"sync"

	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// notifier calls subscribers from its own goroutine, so that replica updates do not wait for them.
type notifier struct {
	mu          sync.Mutex
	subscribers map[string][]func(desired.Owner) // by kind
	due         map[desired.Owner]struct{}
	wake        chan struct{} // buffered; holds a token while owners may be due

	waiting interest.Index[desired.Owner, rowID] // the owners, by the rows that they wait for
}

func newNotifier() *notifier {
	return &notifier{
		subscribers: map[string][]func(desired.Owner){},
		due:         map[desired.Owner]struct{}{},
		wake:        make(chan struct{}, 1),
	}
}

func (n *notifier) subscribe(kind string, f func(desired.Owner)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subscribers[kind] = append(n.subscribers[kind], f)
}

// notify schedules calls of the owners' subscribers. It drops owners of a kind without subscribers.
func (n *notifier) notify(owners []desired.Owner) {
	if len(owners) == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, owner := range owners {
		if len(n.subscribers[owner.Kind]) > 0 {
			n.due[owner] = struct{}{}
		}
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// wait replaces the set of rows that an owner waits for. An empty set ends the wait.
func (n *notifier) wait(owner desired.Owner, missing []rowID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(missing) == 0 && n.waiting.Len() == 0 {
		return
	}
	n.waiting.Set(owner, missing...)
	waitingOwners.Set(float64(n.waiting.Len()))
}

// arrived notifies the owners that wait for any of these rows.
func (n *notifier) arrived(ids []rowID) {
	n.mu.Lock()
	var owners []desired.Owner
	for _, id := range ids {
		owners = append(owners, n.waiting.Of(id)...)
	}
	for _, owner := range owners {
		n.waiting.Set(owner)
	}
	waitingOwners.Set(float64(n.waiting.Len()))
	n.mu.Unlock()
	n.notify(owners)
}

// run calls subscribers until ctx ends.
func (n *notifier) run(ctx context.Context) {
	for {
		select {
		case <-n.wake:
		case <-ctx.Done():
			return
		}
		n.mu.Lock()
		due := n.due
		n.due = map[desired.Owner]struct{}{}
		n.mu.Unlock()
		for owner := range due {
			n.call(owner)
		}
	}
}

func (n *notifier) call(owner desired.Owner) {
	n.mu.Lock()
	subscribers := n.subscribers[owner.Kind]
	n.mu.Unlock()
	for _, f := range subscribers {
		f(owner)
	}
}
