// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"fmt"

	"github.com/kiln-net/kiln/internal/keylock"
)

// locks serializes the operations on one interface of one container: a runtime whose ADD timed out may send the next operation while the
// ADD still runs. The zero value is ready.
type locks struct{ keylock.Locks }

// tryLock returns the function that unlocks the interface, or false if another operation on it runs.
func (l *locks) tryLock(containerID, ifName string) (func(), bool) {
	return l.TryLock(keyOf(containerID, ifName))
}

func keyOf(containerID, ifName string) string { return containerID + "/" + ifName }

// lock waits until the interface is free, or ctx ends, and returns the function that unlocks it.
func (l *locks) lock(ctx context.Context, containerID, ifName string) (func(), error) {
	unlock, err := l.Lock(ctx, keyOf(containerID, ifName))
	if err != nil {
		return nil, fmt.Errorf("another operation on interface %s of container %s still runs: %w", ifName, containerID, err)
	}
	return unlock, nil
}
