// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
			wait := recorded{test: tt.test, place: "a_test.go:1", took: tt.took}
			if tt.test == "TestOwnBase" {
				wait.base = 10 * time.Second
			}
			late := beyondLimits([]recorded{wait}, tt.allowed, func(time.Time, time.Time) float64 { return tt.factor })
			if got := len(late) == 0; got != tt.within || !got && !strings.HasPrefix(late[0].String(), "a_test.go:1: "+tt.test+" waited") {
				t.Errorf("within %v, want %v: %v", got, tt.within, late)
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

func TestACapIsLongerForWaitsWithALongerBase(t *testing.T) {
	for _, tt := range []struct {
		name             string
		cap              string
		limit, own, want time.Duration
	}{
		{"without a cap", "", time.Minute, base, time.Minute},
		{"with the usual base", "45s", 2 * time.Minute, base, 45 * time.Second},
		{"with a base that is twice as long", "45s", 2 * time.Minute, 2 * base, 90 * time.Second},
		{"never longer than the limit of the wait", "45s", 2 * time.Minute, 10 * base, 2 * time.Minute},
		{"with a shorter base", "45s", 2 * time.Minute, base / 5, 45 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(LimitVariable, tt.cap)
			if got := capped(tt.limit, tt.own); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestLateWaitsAreReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "waits.jsonl")
	t.Setenv(ReportVariable, path)
	factor := func(time.Time, time.Time) float64 { return 2 }
	waits := []recorded{{test: "TestA", place: "a_test.go:1", took: 3 * base}, {test: "TestB", took: base}, {test: "TestC", place: "c_test.go:7", took: 2*base + time.Second}}
	for range 2 {
		if reported, err := report(beyondLimits(waits, nil, factor)); err != nil || !reported {
			t.Fatalf("reported %v, %v", reported, err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines, want two of each package: %s", len(lines), text)
	}
	want := lateWait{Package: "github.com/kiln-net/kiln/internal/testing/eventually", Test: "TestC", Place: "c_test.go:7", Seconds: 11, Limit: 10, Base: 5, Factor: 2}
	var got lateWait
	if err := json.Unmarshal([]byte(lines[1]), &got); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

// TestLateWaitsFailAPackageWithoutAReport checks the two cases in which Main fails the package.
func TestLateWaitsFailAPackageWithoutAReport(t *testing.T) {
	late := []lateWait{{Test: "TestA"}}
	t.Setenv(ReportVariable, "")
	if reported, err := report(late); reported || err != nil {
		t.Errorf("without a file: reported %v, %v", reported, err)
	}
	t.Setenv(ReportVariable, filepath.Join(t.TempDir(), "missing", "waits.jsonl"))
	if reported, err := report(late); reported || err == nil {
		t.Errorf("with a file that cannot be written: reported %v, %v", reported, err)
	}
}

func TestALimitWithoutAUnitIsRefused(t *testing.T) {
	t.Setenv(LimitVariable, "45")
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, LimitVariable) || !strings.Contains(got, "missing unit") {
			t.Errorf("panic %q", got)
		}
	}()
	Capped(time.Minute)
}
