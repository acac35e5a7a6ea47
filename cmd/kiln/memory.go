// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// gcPercent is how much of what lives may be added before garbage is collected, where GOGC does not say. Most of what the
	// controller holds is there for good: with Go's 100, half of its memory would be garbage.
	gcPercent = 50
	// settledAfter is when that begins. Until then a process may have what makes it fast: collecting as often at the start would make
	// that a quarter longer.
	settledAfter = 10 * time.Second
	// restPeriod is how long a process must have rested before it gives memory back to the system.
	restPeriod = 5 * time.Second
)

// Bytes that a process allocates. Between two times that it gives memory back are at least as many periods as the one goes into the
// other: more than a minute.
const (
	// restBytes in a period are at most what one that rests allocates: for its Lease, for probes and for a pod now and then.
	restBytes = 2 << 20
	// workBytes are what is worth a collection of everything to give back.
	workBytes = 32 << 20
)

// thrift decides when a process gives back what its work has left behind: after it was read into memory, and after each burst.
type thrift struct{ seen, gaveBack uint64 }

// due is asked once in a period, and told all that was allocated since the start.
func (t *thrift) due(allocated uint64) bool {
	rested := allocated-t.seen <= restBytes
	t.seen = allocated
	if !rested || allocated-t.gaveBack < workBytes {
		return false
	}
	t.gaveBack = allocated
	return true
}

// economize has the process take less memory, until ctx ends.
func economize(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		defer time.AfterFunc(settledAfter, func() { debug.SetGCPercent(gcPercent) }).Stop()
	}
	period := time.NewTicker(restPeriod)
	defer period.Stop()
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	for t := (thrift{}); ; {
		select {
		case <-period.C:
		case <-ctx.Done():
			return
		}
		if metrics.Read(allocated); t.due(allocated[0].Value.Uint64()) {
			debug.FreeOSMemory()
		}
	}
}
