// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"runtime"
	"testing"
)

// TestCostPerAddress counts memory allocations, which do not depend on the machine: to allocate and release a pod's address
// takes the two of its allocation, in small and large subnets, full or empty.
func TestCostPerAddress(t *testing.T) {
	for _, tt := range cidrs {
		t.Run(tt.name, func(t *testing.T) {
			for _, held := range []int{0, 1_000, 50_000} {
				a := filled(t, spec(t, tt.cidrs, tt.gateways), held)
				for range 2 * keepReleased { // the number of remembered released addresses is bounded, and the maps grow until then
					allocatePort(t, a, "pod.ns")
					a.Release("pod.ns")
				}
				allocation := testing.AllocsPerRun(1000, func() {
					allocatePort(t, a, "pod.ns")
					a.Release("pod.ns")
				})
				if allocation > 2 {
					t.Errorf("with %d held, a pod that comes and goes takes %v allocations of memory, want the 2 of its result", held, allocation)
				}
			}
		})
	}
}

// TestMemoryIsInProportionToHeldAddresses compares sizes of subnets, not machines: a /8 costs the same as a /16.
func TestMemoryIsInProportionToHeldAddresses(t *testing.T) {
	const pods, bytesPerPod = 20_000, 300 // for Go's maps, which may be half empty, and one address
	for _, tt := range cidrs {
		t.Run(tt.name, func(t *testing.T) {
			ports := names(pods)
			before := liveBytes()
			a := with(t, spec(t, tt.cidrs, tt.gateways))
			for _, port := range ports {
				allocatePort(t, a, port)
			}
			limit := uint64(bytesPerPod)
			if tt.name == "dual" {
				limit *= 2
			}
			if perPod := (liveBytes() - before) / pods; perPod > limit {
				t.Errorf("%d bytes per pod, want at most %d", perPod, limit)
			} else {
				t.Logf("%d bytes per pod", perPod)
			}
			runtime.KeepAlive(a)
			runtime.KeepAlive(ports)
		})
	}
}

func liveBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
