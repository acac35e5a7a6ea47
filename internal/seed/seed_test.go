// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package seed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

type recorder struct{ logged, failed string }

func (*recorder) Helper()                             {}
func (r *recorder) Logf(format string, args ...any)   { r.logged = fmt.Sprintf(format, args...) }
func (r *recorder) Fatalf(format string, args ...any) { r.failed = fmt.Sprintf(format, args...) }

func TestNew(t *testing.T) {
	t.Setenv(Env, "")
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
	one, other := run([]uint64{5}, 3), run([]uint64{5}, 3)
	if len(one) != 4 || one[0] != 5 || slices.Equal(one, other) {
		t.Errorf("the seeds of two runs are %v and %v; want 5 and three new ones", one, other)
	}
	t.Setenv(Env, "9")
	if got := run([]uint64{5}, 3); !slices.Equal(got, []uint64{9}) {
		t.Errorf("with KILN_SEED=9 the seeds are %v", got)
	}
}
