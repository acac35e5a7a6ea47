// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package seed gives random tests a new seed in each run and repeats the run of a given seed.
package seed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// Env is the environment variable that repeats a run: its value, a number, is the only seed that tests use.
const Env = "KILN_SEED"

// TB is the part of testing.TB that New needs. ginkgo's GinkgoT() has it, too.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// New returns the value of Env, or else a new seed, and logs how to repeat the run.
func New(t TB) uint64 {
	t.Helper()
	seed, given := fromEnv(t)
	if !given {
		seed = fresh()
	}
	t.Logf("seed: %d (repeat with %s=%d)", seed, Env, seed)
	return seed
}

// Histories runs f, as a subtest, for each of the seeds of earlier failures and then for n new seeds, up to the first failure. With Env it runs
// that seed only. The generator is of the seed's stream 1; f gets the seed for its messages and for further streams.
func Histories(t *testing.T, failedOnce []uint64, n int, f func(t *testing.T, seed uint64, random *rand.Rand)) {
	t.Helper()
	seeds := slices.Clone(failedOnce)
	if seed, given := fromEnv(t); given {
		seeds = []uint64{seed}
	} else {
		for range n {
			seeds = append(seeds, fresh())
		}
	}
	for _, seed := range seeds {
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { f(t, seed, Rand(seed, 1)) }) {
			t.Fatalf("seed: %d (repeat with %s=%d)", seed, Env, seed)
		}
	}
}

// Rand returns a generator of one stream of a seed. Goroutines need streams of their own: a generator is not safe for concurrent use.
func Rand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

func fromEnv(t TB) (seed uint64, given bool) {
	t.Helper()
	text := os.Getenv(Env)
	if text == "" {
		return 0, false
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", Env, err)
	}
	return seed, true
}

// fresh seeds are short enough to be typed.
func fresh() uint64 { return uint64(rand.Uint32()) }
