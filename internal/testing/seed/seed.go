// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package seed gives random tests a new seed in each run, or the seeds that follow from a base, and repeats the run of a given seed.
package seed

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"testing"
)

const (
	// Env is the environment variable that repeats a run: its value, a number, is the only seed that tests use.
	Env = "KILN_SEED"
	// BaseEnv is the environment variable from whose value, a number, the seeds of all tests follow. The gate sets it, so that the tests of one
	// tree draw the same histories in each run.
	BaseEnv = "KILN_SEEDS"
)

// TB is the part of testing.TB that New needs. ginkgo's GinkgoT() has it, too.
type TB interface {
	Helper()
	Name() string
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// New returns the value of Env, or else a new seed or the next one of the test that follows from BaseEnv, and logs how to repeat the run.
func New(t TB) uint64 {
	t.Helper()
	seed, given := fromEnv(t, Env)
	if !given {
		seed = fresh(t)
	}
	t.Logf("seed: %d (repeat with %s=%d)", seed, Env, seed)
	return seed
}

// Histories runs f, as a subtest, for each of the seeds of earlier failures and then for n new seeds, up to the first failure. With Env it runs
// that seed only. The generator is of the seed's stream 1; f gets the seed for its messages and for further streams.
func Histories(t *testing.T, failedOnce []uint64, n int, f func(t *testing.T, seed uint64, random *rand.Rand)) {
	t.Helper()
	seeds := slices.Clone(failedOnce)
	if seed, given := fromEnv(t, Env); given {
		seeds = []uint64{seed}
	} else {
		for range n {
			seeds = append(seeds, fresh(t))
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

func fromEnv(t TB, variable string) (value uint64, given bool) {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return 0, false
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return value, true
}

// drawn counts the seeds of each test.
var drawn = struct {
	sync.Mutex
	by map[string]int
}{by: map[string]int{}}

// fresh returns a seed that is short enough to be typed. With BaseEnv it is a hash of the base, the package, the test, and the number of seeds
// that the test has drawn, so that it does not depend on other tests.
func fresh(t TB) uint64 {
	t.Helper()
	base, given := fromEnv(t, BaseEnv)
	if !given {
		return uint64(rand.Uint32())
	}
	drawn.Lock()
	n := drawn.by[t.Name()]
	drawn.by[t.Name()]++
	drawn.Unlock()
	return derived(base, t.Name(), n)
}

func derived(base uint64, test string, n int) uint64 {
	program := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		program = info.Path
	}
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%d %s %s %d", base, program, test, n)
	return uint64(hash.Sum32())
}
