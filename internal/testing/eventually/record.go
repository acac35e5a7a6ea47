// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// base is how long a wait may take on the reference machine of speed.go. Nearly all waits take less than a tenth of it there. A
// wait for the last steps of an exponential back-off, or for a periodic retry, takes longer.
const base = 5 * time.Second

// shown is how many of the slowest waits -v prints.
const shown = 10

// recorded is a finished wait.
type recorded struct {
	test, place string
	began       time.Time
	took        time.Duration
	base        time.Duration // zero: the base of the test
}

var (
	recordsMu sync.Mutex
	records   []recorded
)

// Record records a finished wait that began then, for tests that wait by other means.
func Record(t testing.TB, began time.Time) {
	record(recorded{test: t.Name(), place: caller(), began: began})
}

func record(r recorded) {
	r.took = time.Since(r.began)
	recordsMu.Lock()
	defer recordsMu.Unlock()
	records = append(records, r)
}

// caller is the line of the test that waits: the outermost frame in a file of tests, because helpers are in such files too.
func caller() string {
	pcs := make([]uintptr, 32)
	frames, place := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)]), "?"
	for more := true; more; {
		var frame runtime.Frame
		if frame, more = frames.Next(); strings.HasSuffix(frame.File, "_test.go") {
			place = fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line)
		}
	}
	return place
}

// Allowed are tests, by name, whose waits may take longer than base, each with the reason. The name of a test includes its
// subtests. The duration is the new base, which is also multiplied by the factor of the machine.
type Allowed map[string]Reason

// Reason is why the waits of a test take long.
type Reason struct {
	Why  string
	Base time.Duration
}

// baseOf returns the base of the test or of the nearest test around it that has one.
func (a Allowed) baseOf(test string) time.Duration {
	for {
		if reason, ok := a[test]; ok {
			return reason.Base
		}
		i := strings.LastIndex(test, "/")
		if i < 0 {
			return base
		}
		test = test[:i]
	}
}

// allowedHere is the argument of Main.
var allowedHere = Allowed{}

// Main runs the tests of a package and returns the exit code. The package fails when one of its waits took longer than its base times
// the factor by which the machine was slower than the reference, measured before and after the tests and every five seconds in between. With
// ReportVariable, as in the gate, it reports such waits instead.
func Main(m *testing.M, allowed ...Allowed) int {
	for _, a := range allowed {
		maps.Copy(allowedHere, a)
	}
	if flag.Parse(); flag.Lookup("test.bench").Value.String() != "" {
		return m.Run() // samples would take CPU time from the benchmark
	}
	s := StartSampling(samplePause)
	code := m.Run()
	s.Stop()
	recordsMu.Lock()
	defer recordsMu.Unlock()
	if testing.Verbose() {
		slowest(os.Stderr, s)
	}
	late := beyondLimits(records, allowedHere, s.Factor)
	for _, w := range late {
		fmt.Fprintln(os.Stderr, w)
	}
	reported, err := report(late)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if code == 0 && len(late) > 0 && !reported {
		return 1
	}
	return code
}

// beyondLimits returns the waits that exceeded their limits.
func beyondLimits(waits []recorded, allowed Allowed, factor func(from, to time.Time) float64) (late []lateWait) {
	for _, r := range waits {
		speed := factor(r.began, r.began.Add(r.took))
		base := cmp.Or(r.base, allowed.baseOf(r.test))
		if limit := time.Duration(float64(base) * speed); r.took > limit {
			late = append(late, lateWait{
				Package: testedPackage(), Test: r.test, Place: r.place, Seconds: r.took.Seconds(), Limit: limit.Seconds(), Base: base.Seconds(), Factor: speed,
			})
		}
	}
	return late
}

func slowest(out io.Writer, s *Sampling) {
	waits := slices.SortedFunc(slices.Values(records), func(a, b recorded) int { return cmp.Compare(b.took, a.took) })
	fmt.Fprintf(out, "%d waits; the slowest:\n", len(waits))
	for _, r := range waits[:min(shown, len(waits))] {
		fmt.Fprintf(out, "%10s  at %.1f times the reference  %s %s\n",
			r.took.Round(time.Millisecond), s.Factor(r.began, r.began.Add(r.took)), r.place, r.test)
	}
}
