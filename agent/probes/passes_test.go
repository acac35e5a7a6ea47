// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

// Calls that arrive during a pass share the next one, which begins after all of them.
func TestConcurrentCallsShareAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p passes
		begun := 0
		release := make(chan struct{})
		failed := errors.New("failed")
		run := func(context.Context) error {
			begun++
			<-release
			return failed
		}
		var all sync.WaitGroup
		call := func() {
			all.Go(func() {
				if err := p.join(t.Context(), run); !errors.Is(err, failed) {
					t.Errorf("a call returned %v", err)
				}
			})
			synctest.Wait()
		}
		call()
		for range 50 {
			call()
		}
		if begun != 1 {
			t.Errorf("%d passes began while one ran", begun)
		}
		release <- struct{}{}
		release <- struct{}{}
		all.Wait()
		if begun != 2 {
			t.Errorf("51 calls made %d passes, want 2", begun)
		}
	})
}

// A canceled call does not cancel the pass of other calls.
func TestACallThatEndsLeavesThePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p passes
		release := make(chan struct{})
		run := func(ctx context.Context) error {
			<-release
			return ctx.Err()
		}
		first, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- p.join(first, run) }()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the call returned %v", err)
		}
		go func() { ended <- p.join(t.Context(), run) }()
		synctest.Wait()
		release <- struct{}{}
		release <- struct{}{}
		if err := <-ended; err != nil {
			t.Errorf("the next pass returned %v", err)
		}
	})
}
