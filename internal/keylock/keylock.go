// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package keylock has locks that are named by a key.
package keylock

import (
	"context"
	"sync"
)

// Locks is a set of locks. Memory is used for locks that are held only. The zero value is ready.
type Locks struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// TryLock returns the function that unlocks a key, or false if it is locked.
func (l *Locks) TryLock(key string) (unlock func(), ok bool) {
	_, unlock = l.try(key)
	return unlock, unlock != nil
}

// Lock waits until a key is unlocked, locks it, and returns the function that unlocks it. The error is the error of ctx, if that ends before.
func (l *Locks) Lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		free, unlock := l.try(key)
		if unlock != nil {
			return unlock, nil
		}
		select {
		case <-free:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// try takes the lock, or returns a channel that is closed when the holder releases it.
func (l *Locks) try(key string) (<-chan struct{}, func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if busy, taken := l.held[key]; taken {
		return busy, nil
	}
	if l.held == nil {
		l.held = map[string]chan struct{}{}
	}
	done := make(chan struct{})
	l.held[key] = done
	return nil, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, key)
		close(done)
	}
}
