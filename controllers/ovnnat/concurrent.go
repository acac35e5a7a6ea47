// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"context"
	"slices"
	"sync"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/keylock"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// workers is the number of rules of a kind that are reconciled at a time. A rule waits for the status of its OvnEip and for a transaction, and rules share both.
const workers = 16

// additions are the translations that workers add, and that the database may not have yet. The zero value is ready.
type additions struct {
	mu    sync.Mutex
	added map[desired.Owner][]translate.Translation
}

// begin registers the translations that an owner adds until end is called, unless another owner has one in the database, which applied returns, or adds one that excludes them.
// Then it returns that owner; "" otherwise.
func (a *additions) begin(owner desired.Owner, added []translate.Translation, applied func() string) (occupant string, end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for other, theirs := range a.added {
		if other != owner && slices.ContainsFunc(theirs, func(t translate.Translation) bool { return excludesAny(t, added) }) {
			return other.Kind + " " + other.Name, func() {}
		}
	}
	if occupant := applied(); occupant != "" {
		return occupant, func() {}
	}
	if a.added == nil {
		a.added = map[desired.Owner][]translate.Translation{}
	}
	a.added[owner] = added
	return "", func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.added, owner)
	}
}

// records gathers the former translations of rules with one OvnEip: those that arrive during an update of its status share the next one. The zero value is ready.
type records struct {
	updating keylock.Locks
	mu       sync.Mutex
	next     map[string]*update
}

// update is one update of the status of an OvnEip.
type update struct {
	released []kubeovnv1.OvnEipRelease
	done     bool
	err      error
}

// add writes former translations of an OvnEip, with those of other callers, and returns when they are written.
func (r *records) add(ctx context.Context, eip string, released []kubeovnv1.OvnEipRelease, write func([]kubeovnv1.OvnEipRelease) error) error {
	mine := r.join(eip, released)
	unlock, err := r.updating.Lock(ctx, eip)
	if err != nil {
		return err
	}
	defer unlock()
	if !mine.done { // then mine is the next one: earlier ones were written by the holders of the lock
		r.mu.Lock()
		delete(r.next, eip)
		r.mu.Unlock()
		mine.done, mine.err = true, write(mine.released)
	}
	return mine.err
}

func (r *records) join(eip string, released []kubeovnv1.OvnEipRelease) *update {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = map[string]*update{}
	}
	if r.next[eip] == nil {
		r.next[eip] = &update{}
	}
	r.next[eip].released = append(r.next[eip].released, released...)
	return r.next[eip]
}
