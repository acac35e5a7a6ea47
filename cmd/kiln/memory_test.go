// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestMemoryIsGivenBackAfterWorkOnly(t *testing.T) {
	const start, burst = 200 << 20, 500 << 20
	for _, tt := range []struct {
		name    string
		periods []uint64 // bytes allocated in each period
		want    int
	}{
		{"a start", []uint64{start, start, 1 << 20, 1 << 20}, 1},
		{"a start of nothing much", []uint64{8 << 20, 1 << 20, 1 << 20}, 0},
		{"a start and two bursts", []uint64{start, 0, burst, burst, 1 << 20, 0, burst, 1 << 20}, 3},
		{"continued work", []uint64{burst, burst, burst, burst}, 0},
		{"a pod now and then, for a minute", append([]uint64{start, 0}, repeat(restBytes, 12)...), 1},
		{"a pod now and then, for three minutes", append([]uint64{start, 0}, repeat(restBytes, 36)...), 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var memory memoryReturn
			got, allocated := 0, uint64(0)
			for _, bytes := range tt.periods {
				allocated += bytes
				if memory.due(allocated) {
					got++
				}
			}
			if got != tt.want {
				t.Errorf("memory was given back %d times, want %d", got, tt.want)
			}
		})
	}
}

func repeat(bytes uint64, periods int) []uint64 {
	all := make([]uint64, periods)
	for i := range all {
		all[i] = bytes
	}
	return all
}
