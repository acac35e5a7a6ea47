// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"fmt"
	"sync"
)

// locks serializes the operations on one interface of one container: a runtime whose ADD timed out may send the next operation while the
// ADD still runs. The zero value is ready.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// tryLock returns the function that unlocks the interface, or false if another operation on it runs.
func (l *locks) tryLock(containerID, ifName string) (func(), bool) {
	_, release := l.try(keyOf(containerID, ifName))
	return release, release != nil
}

func keyOf(containerID, ifName string) string { return containerID + "/" + ifName }

// lock waits until the interface is free, or ctx ends, and returns the function that unlocks it.
func (l *locks) lock(ctx context.Context, containerID, ifName string) (func(), error) {
	key := keyOf(containerID, ifName)
	for {
		free, release := l.try(key)
		if release != nil {
			return release, nil
		}
		select {
		case <-free:
		case <-ctx.Done():
			return nil, fmt.Errorf("another operation on interface %s of container %s still runs: %w", ifName, containerID, ctx.Err())
		}
	}
}

// try takes the lock, or returns a channel that is closed when the holder releases it.
func (l *locks) try(key string) (<-chan struct{}, func()) {
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
