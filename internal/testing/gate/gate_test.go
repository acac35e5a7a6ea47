// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"slices"
	"testing"
)

// recorder is a test that records whether it was skipped.
type recorder struct {
	testing.TB
	skipped string
}

func (*recorder) Helper()                            {}
func (r *recorder) Skipf(format string, args ...any) { r.skipped = fmt.Sprintf(format, args...) }

func TestSkip(t *testing.T) {
	const skipped = "the gate leaves this test out; run it with: make test-long"
	for _, tt := range []struct{ name, gate, target, want string }{
		{"outside of the gate the test runs", "", "", ""},
		{"the gate skips it", "1", "", skipped},
		{"its target runs it within the gate", "1", "test-long", ""},
		{"another target does not", "1", "test-operator-long", skipped},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(Env, tt.gate)
			t.Setenv(TargetEnv, tt.target)
			r := &recorder{}
			if Skip(r, Long); r.skipped != tt.want {
				t.Errorf("skipped %q, want %q", r.skipped, tt.want)
			}
		})
	}
}

func TestAShellDoesNotChangeWhatTestsRun(t *testing.T) {
	got := Environment([]string{"PATH=/bin", "KILN_SEED=7", "STAGES=lint", "MAKEFLAGS= -- STAGES=lint", "KILN_CACHE=/cache", "WAYS=bundle"})
	if want := []string{"PATH=/bin", "KILN_CACHE=/cache", "WAYS=bundle"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
