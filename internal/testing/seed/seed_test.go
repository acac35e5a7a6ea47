// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package seed

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

type recorder struct{ name, logged, failed string }

func (*recorder) Helper()                             {}
func (r *recorder) Name() string                      { return r.name }
func (r *recorder) Logf(format string, args ...any)   { r.logged = fmt.Sprintf(format, args...) }
func (r *recorder) Fatalf(format string, args ...any) { r.failed = fmt.Sprintf(format, args...) }

func TestNew(t *testing.T) {
	t.Setenv(Env, "")
	t.Setenv(BaseEnv, "")
	r := &recorder{}
	one, other := New(r), New(&recorder{})
	if one == other {
		t.Errorf("two runs have the same seed %d", one)
	}
	if want := fmt.Sprintf("seed: %d (repeat with KILN_SEED=%d)", one, one); r.logged != want {
		t.Errorf("logged %q, want %q", r.logged, want)
	}
	t.Setenv(Env, "7")
	if got := New(r); got != 7 || r.logged != "seed: 7 (repeat with KILN_SEED=7)" {
		t.Errorf("with KILN_SEED=7 the seed is %d; logged %q", got, r.logged)
	}
	t.Setenv(Env, "x")
	if New(r); !strings.Contains(r.failed, "KILN_SEED") {
		t.Errorf("with KILN_SEED=x it failed with %q", r.failed)
	}
}

func TestHistories(t *testing.T) {
	run := func(failedOnce []uint64, n int) (seeds []uint64) {
		Histories(t, failedOnce, n, func(_ *testing.T, seed uint64, random *rand.Rand) {
			seeds = append(seeds, seed)
			if got, want := random.Uint64(), Rand(seed, 1).Uint64(); got != want {
				t.Errorf("seed %d draws %d, and %d when it is repeated", seed, got, want)
			}
		})
		return seeds
	}
	t.Setenv(Env, "")
	t.Setenv(BaseEnv, "")
	one, other := run([]uint64{5}, 3), run([]uint64{5}, 3)
	if len(one) != 4 || one[0] != 5 || slices.Equal(one, other) {
		t.Errorf("the seeds of two runs are %v and %v; want 5 and three new ones", one, other)
	}
	t.Setenv(Env, "9")
	if got := run([]uint64{5}, 3); !slices.Equal(got, []uint64{9}) {
		t.Errorf("with KILN_SEED=9 the seeds are %v", got)
	}
}

// TestABase draws the seeds of two tests in two orders.
func TestABase(t *testing.T) {
	t.Setenv(Env, "")
	draw := func(base string, tests ...string) map[string][]uint64 {
		t.Helper()
		t.Setenv(BaseEnv, base)
		drawn.by = map[string]int{}
		seeds := map[string][]uint64{}
		for _, test := range tests {
			seeds[test] = append(seeds[test], New(&recorder{name: test}))
		}
		return seeds
	}
	one := draw("7", "TestA", "TestA", "TestB", "TestB")
	if other := draw("7", "TestB", "TestA", "TestB", "TestA"); !reflect.DeepEqual(one, other) {
		t.Errorf("in another order of the tests the seeds are %v, want %v", other, one)
	}
	all := map[uint64]bool{}
	for _, seeds := range []map[string][]uint64{one, draw("8", "TestA", "TestB")} {
		for _, of := range seeds {
			for _, s := range of {
				all[s] = true
			}
		}
	}
	if len(all) != 6 {
		t.Errorf("two bases give two tests the seeds %v: %d of 6 differ", one, len(all))
	}
	t.Setenv(BaseEnv, "x")
	r := &recorder{}
	if New(r); !strings.Contains(r.failed, "KILN_SEEDS") {
		t.Errorf("with KILN_SEEDS=x it failed with %q", r.failed)
	}
}
