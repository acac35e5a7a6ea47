// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package keylock

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestLocks(t *testing.T) {
	var l Locks
	release, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the lock was taken twice: %v", err)
	}
	if _, ok := l.TryLock("a"); ok {
		t.Error("TryLock took a lock that is held")
	}
	turns := make(chan int, 10)
	for i := range 10 {
		go func() {
			release, err := l.Lock(t.Context(), "a")
			if err == nil {
				release()
			}
			turns <- i
		}()
	}
	release()
	for range 10 {
		<-turns
	}
	if len(l.held) != 0 {
		t.Errorf("locks are left: %v", l.held)
	}
}
