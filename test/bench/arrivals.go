// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// arrivals stores the names that a watch reports, with the time at which each first appeared.
type arrivals struct {
	mu      sync.Mutex
	changed chan struct{} // closed with the next change
	since   map[string]time.Time
	err     error
}

func newArrivals() *arrivals {
	return &arrivals{changed: make(chan struct{}), since: map[string]time.Time{}}
}

// change records added and removed names with the current time.
func (a *arrivals) change(came, gone []string) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range came {
		if _, known := a.since[name]; !known {
			a.since[name] = now
		}
	}
	for _, name := range gone {
		delete(a.since, name)
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// end stores the error that ended the watch.
func (a *arrivals) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	close(a.changed)
	a.changed = make(chan struct{})
}

// await waits until done returns true for the present names.
func (a *arrivals) await(ctx context.Context, done func(since map[string]time.Time) bool) error {
	for {
		a.mu.Lock()
		ok, changed, err := done(a.since), a.changed, a.err
		a.mu.Unlock()
		switch {
		case ok:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("follow arrivals: %w", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// awaitNames waits until all of these names are present, or all are absent.
func (a *arrivals) awaitNames(ctx context.Context, names []string, there bool) error {
	next := 0 // names before it have been checked already, so each round only checks the rest
	err := a.await(ctx, func(since map[string]time.Time) bool {
		for ; next < len(names); next++ {
			if _, ok := since[names[next]]; ok != there {
				return false
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("wait for %s and maybe others: %w", names[next], err)
	}
	return nil
}

// awaitCount waits until at least n names are present.
func (a *arrivals) awaitCount(ctx context.Context, n int) error {
	return a.await(ctx, func(since map[string]time.Time) bool { return len(since) >= n })
}

// at returns when a name appeared, or the zero time if it is absent.
func (a *arrivals) at(name string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.since[name]
}
