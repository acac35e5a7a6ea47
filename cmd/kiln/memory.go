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
	// gcPercent is the GC percentage (GOGC) if the environment does not set one. Most of the controller's heap is long-lived, so with
	// Go's default of 100 up to half of its memory would be garbage.
	gcPercent = 50
	// settledAfter is the delay before gcPercent applies. With it from the beginning, the start would take a quarter longer.
	settledAfter = 10 * time.Second
	// restPeriod is how long a process must be idle before it returns memory to the operating system.
	restPeriod = 5 * time.Second
)

// Thresholds of allocated bytes. An idle process returns memory at most once in workBytes/restBytes periods, which is more than a minute.
const (
	// restBytes is the most that an idle process allocates in a period: for its Lease, for probes and for an occasional pod.
	restBytes = 2 << 20
	// workBytes is the least allocation that justifies a full collection to return memory.
	workBytes = 32 << 20
)

// memoryReturn decides when a process returns memory: after its start, and after each burst of work.
type memoryReturn struct{ seen, gaveBack uint64 }

// due reports whether to return memory now. It must be called once per period with the bytes allocated since the start.
func (t *memoryReturn) due(allocated uint64) bool {
	rested := allocated-t.seen <= restBytes
	t.seen = allocated
	if !rested || allocated-t.gaveBack < workBytes {
		return false
	}
	t.gaveBack = allocated
	return true
}

// limitMemory reduces the memory use of the process until ctx ends.
func limitMemory(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		defer time.AfterFunc(settledAfter, func() { debug.SetGCPercent(gcPercent) }).Stop()
	}
	period := time.NewTicker(restPeriod)
	defer period.Stop()
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	for t := (memoryReturn{}); ; {
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
