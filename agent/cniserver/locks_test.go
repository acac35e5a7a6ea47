// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

func TestOperationsOnOneInterfaceTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l locks
		running, most, ended := 0, 0, 0
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				unlock, err := l.lock(t.Context(), "c", "eth0")
				if err != nil {
					t.Error(err)
					return
				}
				running++ // the lock guards these
				most = max(most, running)
				synctest.Wait() // until all others are blocked
				running--
				ended++
				unlock()
			})
		}
		all.Wait()
		if most != 1 || ended != 20 {
			t.Errorf("%d of 20 operations ended, and %d ran at a time", ended, most)
		}
	})
}

func TestOperationsOnOtherInterfacesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l locks
		unlock, err := l.lock(t.Context(), "c", "eth0")
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		for _, other := range [][2]string{{"c", "net1"}, {"d", "eth0"}} {
			unlock, err := l.lock(t.Context(), other[0], other[1]) // a deadlock ends the test
			if err != nil {
				t.Fatal(err)
			}
			unlock()
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.lock(ctx, "c", "eth0"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interface eth0 of container c") {
			t.Errorf("a canceled operation returned %v", err)
		}
	})
}
