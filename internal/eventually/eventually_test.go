// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAWaitHoldsOnceItsCheckDoes(t *testing.T) {
	checks := 0
	Wait{Pause: time.Millisecond}.Holds(t, func() bool { checks++; return checks == 3 })
	if checks != 3 {
		t.Errorf("%d checks", checks)
	}
}

func TestAWaitFailsWithItsLastText(t *testing.T) {
	got := Wait{For: "a row", Limit: 10 * time.Millisecond, Pause: time.Millisecond}.Last(t, func() string { return "no row" })
	if want := "after 10ms: a row: no row"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAWaitEndsWithAWatchedDaemon(t *testing.T) {
	var end error
	Watch(t, func() error { return end })
	t.Run("a subtest waits", func(t *testing.T) {
		checks := 0
		got := Wait{Pause: time.Millisecond}.Last(t, func() string {
			if checks++; checks == 2 {
				end = errors.New("the daemon has ended")
			}
			return "no answer"
		})
		if want := "no answer; it is final: the daemon has ended"; got != want || checks != 2 {
			t.Errorf("after %d checks: got %q, want %q", checks, got, want)
		}
	})
	end = nil
}

func TestAWatchEndsWithItsTest(t *testing.T) {
	t.Run("watched", func(t *testing.T) { Watch(t, func() error { return errors.New("the daemon has ended") }) })
	if err := ended(t); err != nil {
		t.Error(err)
	}
}

func TestLimitsFollowTheMachine(t *testing.T) {
	for _, tt := range []struct {
		name    string
		test    string
		took    time.Duration
		factor  float64
		allowed Allowed
		within  bool
	}{
		{"a wait within the base", "TestA", base, 1, nil, true},
		{"a wait beyond the base", "TestA", base + 1, 1, nil, false},
		{"a machine that is three times slower", "TestA", 3 * base, 3, nil, true},
		{"a test with a base of its own", "TestA", 9 * time.Second, 1, Allowed{"TestA": {"election timers", 10 * time.Second}}, true},
		{"a subtest of that test", "TestA/sub", 9 * time.Second, 1, Allowed{"TestA": {"election timers", 10 * time.Second}}, true},
		{"beyond the base of its own", "TestA", 11 * time.Second, 1, Allowed{"TestA": {"election timers", 10 * time.Second}}, false},
		{"a wait with a base of its own", "TestOwnBase", 9 * time.Second, 1, nil, true},
		{"another test whose name begins alike", "TestAB", 9 * time.Second, 1, Allowed{"TestA": {"election timers", 10 * time.Second}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := &bytes.Buffer{}
			wait := recorded{test: tt.test, place: "a_test.go:1", took: tt.took}
			if tt.test == "TestOwnBase" {
				wait.base = 10 * time.Second
			}
			got := withinLimits(out, []recorded{wait}, tt.allowed, func(time.Time, time.Time) float64 { return tt.factor })
			if got != tt.within || got == strings.Contains(out.String(), "a_test.go:1: "+tt.test) {
				t.Errorf("within %v, want %v: %s", got, tt.within, out)
			}
		})
	}
}

func TestWaitsAreRecordedWithTheirPlace(t *testing.T) {
	Wait{}.Holds(t, func() bool { return true })
	recordsMu.Lock()
	defer recordsMu.Unlock()
	last := records[len(records)-1]
	if last.test != t.Name() || !strings.HasPrefix(last.place, "eventually_test.go:") {
		t.Errorf("recorded %+v", last)
	}
}

func TestTheFactorIsAMeanAndNotBelowTheEnds(t *testing.T) {
	at := time.Now()
	s := &Sampling{before: 1.5, after: 1, pause: samplePause, samples: []sample{{at, 1}, {at.Add(2 * time.Second), 4}, {at.Add(4 * time.Second), 4}, {at.Add(time.Hour), 100}}}
	if got := s.Factor(at, at.Add(3*time.Second)); got != 3 {
		t.Errorf("factor %v of a time with samples 1, 4 and 4", got)
	}
	if got := s.Factor(at.Add(-time.Hour), at.Add(-time.Hour)); got != 1.5 {
		t.Errorf("factor %v of a time without samples", got)
	}
}

func TestTheSlowestSampleIsNearTheEvent(t *testing.T) {
	at := time.Now()
	s := &Sampling{before: 9, samples: []sample{{at, 1}, {at.Add(2 * time.Second), 7}, {at.Add(time.Hour), 100}}}
	if got := s.Slowest(at.Add(time.Second), at.Add(1500*time.Millisecond)); got != 7 {
		t.Errorf("factor %v within a second of a sample of 7", got)
	}
	if got := s.Slowest(at.Add(time.Minute), at.Add(2*time.Minute)); got != 1 {
		t.Errorf("factor %v of a time without samples", got)
	}
}

func TestThePauseOfASamplingChanges(t *testing.T) {
	s := StartSampling(time.Hour)
	s.SetPause(time.Millisecond)
	Wait{For: "a sample"}.Holds(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.samples) > 0
	})
	s.Stop()
}

func TestTheEnvironmentCapsLimits(t *testing.T) {
	t.Setenv(LimitVariable, "10ms")
	got := Wait{For: "a row", Pause: time.Millisecond}.Last(t, func() string { return "no row" })
	if want := "after 10ms: a row: no row"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
