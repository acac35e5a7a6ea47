// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime/debug"
	"time"
)

const (
	// gcPercent is how much of what lives may be added before garbage is collected, where GOGC does not say. Most of what the
	// controller holds is there for good: with Go's 100, half of its memory would be garbage.
	gcPercent = 50
	// settledAfter is when what reading everything left behind is given back to the system.
	settledAfter = 10 * time.Second
)

// settleMemory has the process take less memory, a while later and for good. Until then it may have what makes it fast: collecting as
// often at the start would make that a quarter longer. It may be called again.
func settleMemory() {
	time.AfterFunc(settledAfter, func() {
		if os.Getenv("GOGC") == "" {
			debug.SetGCPercent(gcPercent)
		}
		debug.FreeOSMemory()
	})
}
