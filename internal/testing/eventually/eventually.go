// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package eventually is how tests wait for other processes and goroutines. A wait ends at once when a daemon that the test
// watches has ended. Main fails a package in which a wait took longer than the speed of the machine explains, or reports such waits.
package eventually

import (
	"cmp"
	"fmt"
	"os"
	"testing"
	"time"
)

// Defaults of Wait.
const (
	defaultLimit = 2 * time.Minute // for a busy machine; most waits take less than a tick
	defaultPause = 20 * time.Millisecond
)

// LimitVariable is an environment variable that caps the limits of waits, such as `45s`, so that a test that fails does so soon. A wait with a
// longer base than usual has a cap that is longer in the same ratio.
const LimitVariable = "KILN_WAIT_LIMIT"

// Wait is a condition that another process or goroutine will meet.
type Wait struct {
	// For describes the condition. It is part of the message of a wait that fails.
	For string
	// Limit is the time after which the wait fails; zero means 2 minutes.
	Limit time.Duration
	// Pause is the time between two checks; zero means 20 ms.
	Pause time.Duration
	// Base is how long the wait may take before Main fails the package, for waits for timers such as elections. It is multiplied by
	// the factor of the machine. Zero means the base of the test.
	Base time.Duration
}

// Holds waits until check returns true.
func (w Wait) Holds(t testing.TB, check func() bool) {
	t.Helper()
	w.Empty(t, func() string {
		if check() {
			return ""
		}
		return "it does not hold"
	})
}

// Succeeds waits until check returns nil. The last error is in the message of a wait that fails.
func (w Wait) Succeeds(t testing.TB, check func() error) {
	t.Helper()
	w.Empty(t, func() string {
		if err := check(); err != nil {
			return err.Error()
		}
		return ""
	})
}

// Empty waits until check returns no text. The last text is in the message of a wait that fails.
func (w Wait) Empty(t testing.TB, check func() string) {
	t.Helper()
	if wrong := w.Last(t, check); wrong != "" {
		t.Fatal(wrong)
	}
}

// Until waits until check returns no text, with the defaults of Wait.
func Until(t testing.TB, check func() string) {
	t.Helper()
	Wait{}.Empty(t, check)
}

// Last is Empty for callers that have more to print: it returns the message of a wait that fails, and does not fail the test.
func (w Wait) Last(t testing.TB, check func() string) string {
	t.Helper()
	w = w.withDefaults(t.Name())
	began, place := time.Now(), caller()
	defer func() { record(recorded{test: t.Name(), place: place, began: began, base: w.Base}) }()
	tick := time.NewTicker(w.Pause)
	defer tick.Stop()
	for ; ; <-tick.C {
		wrong := check()
		if wrong == "" {
			return ""
		}
		if err := ended(t); err != nil {
			return fmt.Sprintf("%s%s; it is final: %v", w.prefix(), wrong, err)
		}
		if time.Since(began) > w.Limit {
			return fmt.Sprintf("after %s: %s%s", w.Limit, w.prefix(), wrong)
		}
	}
}

// Stays fails the test as soon as check returns a text within this time. It is for an event that must not happen and that leaves
// no trace: a defect would cause it within this time. It is not recorded as a wait.
func Stays(t testing.TB, during time.Duration, check func() string) {
	t.Helper()
	tick := time.NewTicker(defaultPause)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < during; <-tick.C {
		if wrong := check(); wrong != "" {
			t.Fatalf("after %s: %s", time.Since(began).Round(time.Millisecond), wrong)
		}
		if err := ended(t); err != nil {
			t.Fatal(err)
		}
	}
}

func (w Wait) withDefaults(test string) Wait {
	w.Limit = capped(cmp.Or(w.Limit, defaultLimit), cmp.Or(w.Base, allowedHere.baseOf(test)))
	w.Pause = cmp.Or(w.Pause, defaultPause)
	return w
}

// Capped returns the limit of a test's wait by other means: this one, or less with LimitVariable.
func Capped(limit time.Duration) time.Duration { return capped(limit, base) }

// capped returns the limit of a wait with a base.
func capped(limit, own time.Duration) time.Duration {
	text := os.Getenv(LimitVariable)
	if text == "" {
		return limit
	}
	most, err := time.ParseDuration(text)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", LimitVariable, err)) // without a limit, the gate would wait as long as other targets
	}
	return min(limit, time.Duration(float64(most)*max(1, float64(own)/float64(base))))
}

func (w Wait) prefix() string {
	if w.For == "" {
		return ""
	}
	return w.For + ": "
}
