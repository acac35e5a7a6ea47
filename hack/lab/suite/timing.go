// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2/types"
)

// timingEntry is the name of report entries of specs with a Timing.
const timingEntry = "timing"

// knownDefect is the label of specs that fail because of a defect, which their comment describes. Their failure does not count.
const knownDefect = "known-defect"

// Timing is a time that a spec measured, and the limit that it applied, in seconds.
type Timing struct {
	What           string
	Seconds, Limit float64
}

// ReadRuns reads the reports of several runs. A run without a report, such as one that was killed, is an error.
func ReadRuns(attempts []Attempt) ([]Ran, error) {
	var runs []Ran
	for _, a := range attempts {
		raw, err := os.ReadFile(a.Report)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read the report of a run: %w", err), a.Exit)
		}
		var reports []types.Report
		if err := json.Unmarshal(raw, &reports); err != nil {
			return nil, fmt.Errorf("decode the report of a run: %w", err)
		}
		ran := Ran{}
		for _, report := range reports {
			if err := ran.add(report); err != nil {
				return nil, err
			}
		}
		if a.Exit != nil && !slices.Contains(ran.failedSpecs(), true) {
			ran.note(outside+"exit status of the program", false)
		}
		runs = append(runs, ran)
	}
	return runs, nil
}

// outside is the prefix of results that no spec has: of set-ups, clean-ups, timeouts.
const outside = "the suite: "

// Ran holds the results of one run.
type Ran struct {
	specs []*specResult
}

// specResult is the result of a spec, of a set-up or of a clean-up in one run.
type specResult struct {
	name          string
	passed, known bool
	timings       []Timing
}

func (r *Ran) failedSpecs() []bool {
	var failed []bool
	for _, s := range r.specs {
		failed = append(failed, !s.passed)
	}
	return failed
}

// note adds a result. If two specs have one name, both must pass.
func (r *Ran) note(name string, passed bool) *specResult {
	if s := r.spec(name); s != nil {
		s.passed = s.passed && passed
		return s
	}
	s := &specResult{name: name, passed: passed}
	r.specs = append(r.specs, s)
	return s
}

func (r *Ran) spec(name string) *specResult {
	if i := slices.IndexFunc(r.specs, func(s *specResult) bool { return s.name == name }); i >= 0 {
		return r.specs[i]
	}
	return nil
}

func (r *Ran) add(report types.Report) error {
	for _, reason := range report.SpecialSuiteFailureReasons {
		r.note(outside+reason, false)
	}
	for i := range report.SpecReports {
		spec := &report.SpecReports[i]
		// A spec that a filter deselects has no message. One that the failure of another spec skips has one.
		if spec.State.Is(types.SpecStatePending) || spec.State.Is(types.SpecStateSkipped) && spec.Failure.Message == "" {
			continue
		}
		name := spec.FullText()
		if spec.LeafNodeType != types.NodeTypeIt {
			name = outside + strings.TrimSpace(spec.LeafNodeType.String()+" "+name)
		}
		s := r.note(name, spec.State.Is(types.SpecStatePassed))
		s.known = s.known || slices.Contains(spec.Labels(), knownDefect)
		for _, entry := range spec.ReportEntries {
			if entry.Name != timingEntry {
				continue
			}
			var t Timing
			if err := json.Unmarshal([]byte(entry.Value.AsJSON), &t); err != nil {
				return fmt.Errorf("decode a timing of %q: %w", name, err)
			}
			s.timings = append(s.timings, t)
		}
	}
	return nil
}

// Verdict writes a line for each spec that failed in a run, and returns an error for those that passed in fewer than need runs, or if no spec ran.
func Verdict(out io.Writer, runs []Ran, need int) error {
	var names, broken []string
	known := map[string]bool{}
	for _, r := range runs {
		for _, s := range r.specs {
			if !slices.Contains(names, s.name) {
				names = append(names, s.name)
			}
			known[s.name] = known[s.name] || s.known
		}
	}
	if len(names) == 0 {
		return errors.New("no spec ran")
	}
	slices.Sort(names)
	for _, name := range names {
		passed := 0
		for _, r := range runs {
			// A spec that is absent from a run did not pass. A failure outside of specs is absent from runs without it.
			if s := r.spec(name); s != nil && s.passed || s == nil && strings.HasPrefix(name, outside) {
				passed++
			}
		}
		enough := passed >= need
		switch {
		case known[name] && enough:
			fmt.Fprintf(out, "passed %d of %d times, remove the label %s: %s\n", passed, len(runs), knownDefect, name)
		case known[name]:
			fmt.Fprintf(out, "known defect, passed %d of %d times: %s\n", passed, len(runs), name)
		case passed < len(runs):
			fmt.Fprintf(out, "passed %d of %d times: %s\n", passed, len(runs), name)
		}
		if !enough && !known[name] {
			broken = append(broken, name)
		}
	}
	if len(broken) > 0 {
		return fmt.Errorf("%d of %d specs passed in fewer than %d of %d runs:\n  %s", len(broken), len(names), need, len(runs), strings.Join(broken, "\n  "))
	}
	fmt.Fprintf(out, "%d specs passed in %d or more of %d runs\n", len(names), need, len(runs))
	return nil
}
