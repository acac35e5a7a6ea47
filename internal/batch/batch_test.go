// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package batch_test

import (
	"errors"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/batch"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

var errBad = errors.New("bad")

// TestIsolate tries batches with bad requests at random places, transactions of bounded size and connections that fail for a while.
func TestIsolate(t *testing.T) {
	seed.Histories(t, nil, 500, func(t *testing.T, _ uint64, random *rand.Rand) {
		n := 1 + random.IntN(200)
		bad := map[int]batch.Outcome{}
		for range random.IntN(3) {
			bad[random.IntN(n)] = []batch.Outcome{batch.Refused, batch.Lost}[random.IntN(2)]
		}
		fits := 1 + random.IntN(2*n)
		notSent := random.IntN(4)
		answered, failed := map[int]int{}, map[int]int{}
		attempts := 0
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		batch.Isolate(all, func(requests []int) batch.Attempt[int] {
			attempts++
			if len(requests) == 0 {
				t.Fatal("an attempt of nothing")
			}
			fit := min(fits, len(requests))
			a := batch.Attempt[int]{Tried: requests[:fit], Left: requests[fit:]}
			if notSent > 0 && random.IntN(10) == 0 {
				notSent--
				a.Outcome = batch.NotSent
				return a
			}
			for _, request := range a.Tried {
				if outcome, ok := bad[request]; ok {
					a.Outcome, a.Err = outcome, errBad
				}
			}
			if a.Outcome == batch.Answered {
				for _, request := range a.Tried {
					answered[request]++
				}
			}
			return a
		}, func(request int, err error) {
			if !errors.Is(err, errBad) {
				t.Errorf("%d failed with %v", request, err)
			}
			failed[request]++
		})
		for _, request := range all {
			_, isBad := bad[request]
			if isBad && (failed[request] != 1 || answered[request] != 0) || !isBad && (failed[request] != 0 || answered[request] != 1) {
				t.Errorf("request %d (bad: %v) was answered %d and failed %d times", request, isBad, answered[request], failed[request])
			}
		}
		if most := (n+fits-1)/fits + 3 + len(bad)*(2*bits.Len(uint(n))+2); attempts > most {
			t.Errorf("%d attempts for %d requests, %d a transaction, with %d bad ones, want %d at most", attempts, n, fits, len(bad), most)
		}
		if t.Failed() {
			t.Logf("bad: %v", slices.Sorted(maps.Keys(bad)))
		}
	})
}

// TestOneLossIsNotReported: a connection may end for reasons that are unrelated to the request.
func TestOneLossIsNotReported(t *testing.T) {
	losses := 0
	batch.Isolate([]int{1}, func(requests []int) batch.Attempt[int] {
		if losses++; losses == 1 {
			return batch.Attempt[int]{Outcome: batch.Lost, Err: errBad, Tried: requests}
		}
		return batch.Attempt[int]{}
	}, func(int, error) { t.Error("it was given up") })
	if losses != 2 {
		t.Errorf("%d attempts, want 2", losses)
	}
}
