// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// spec returns the report of a spec, as ginkgo makes it.
func spec(name string, state types.SpecState, timings ...Timing) types.SpecReport {
	report := types.SpecReport{ContainerHierarchyTexts: []string{"restarts"}, LeafNodeText: name, LeafNodeType: types.NodeTypeIt, State: state}
	for _, timing := range timings {
		report.ReportEntries = append(report.ReportEntries, types.ReportEntry{Name: timingEntry, Value: types.WrapEntryValue(timing)})
	}
	return report
}

func labelled(report types.SpecReport, labels ...string) types.SpecReport {
	report.LeafNodeLabels = labels
	return report
}

// attempt writes the report of a run, with the reports of its specs.
func attempt(t *testing.T, exit error, specs ...types.SpecReport) Attempt {
	t.Helper()
	report := types.Report{SuiteSucceeded: true, SpecReports: specs}
	for i := range specs {
		report.SuiteSucceeded = report.SuiteSucceeded && !specs[i].Failed()
	}
	return attemptOf(t, exit, report)
}

func attemptOf(t *testing.T, exit error, report types.Report) Attempt {
	t.Helper()
	raw, err := json.Marshal([]types.Report{report})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return Attempt{Report: path, Exit: exit}
}

func runs(t *testing.T, attempts ...Attempt) []Ran {
	t.Helper()
	ran, err := ReadRuns(attempts)
	if err != nil {
		t.Fatal(err)
	}
	return ran
}

func TestTwoOfThreeRunsDecide(t *testing.T) {
	failed := errors.New("exit status 1")
	passes := spec("keep flows", types.SpecStatePassed)
	fails := spec("keep flows", types.SpecStateFailed)
	deselected := spec("other", types.SpecStateSkipped)
	skipped := spec("keep flows", types.SpecStateSkipped)
	skipped.Failure.Message = "an earlier spec failed"
	setUp := types.SpecReport{LeafNodeType: types.NodeTypeBeforeSuite, State: types.SpecStateFailed}
	defect, fixed := labelled(fails, knownDefect), labelled(passes, knownDefect)
	interrupted := types.Report{SuiteSucceeded: false, SpecialSuiteFailureReasons: []string{"Suite Timeout Elapsed"}, SpecReports: []types.SpecReport{passes}}

	for name, tt := range map[string]struct {
		attempts []Attempt
		err, out string
	}{
		"all runs pass":            {[]Attempt{attempt(t, nil, passes, deselected), attempt(t, nil, passes), attempt(t, nil, passes)}, "", "1 specs passed in 2 or more of 3 runs\n"},
		"one run fails":            {[]Attempt{attempt(t, nil, passes), attempt(t, failed, fails), attempt(t, nil, passes)}, "", "passed 2 of 3 times: restarts keep flows\n"},
		"two runs fail":            {[]Attempt{attempt(t, failed, fails), attempt(t, failed, fails), attempt(t, nil, passes)}, "1 of 1 specs passed in fewer than 2 of 3 runs:\n  restarts keep flows", "passed 1 of 3 times"},
		"a spec is skipped twice":  {[]Attempt{attempt(t, failed, skipped), attempt(t, failed, skipped), attempt(t, nil, passes)}, "restarts keep flows", "passed 1 of 3 times"},
		"a spec is absent twice":   {[]Attempt{attempt(t, nil, passes, spec("b", types.SpecStatePassed)), attempt(t, nil, passes), attempt(t, nil, passes)}, "restarts b", "passed 1 of 3 times: restarts b"},
		"the set-up fails once":    {[]Attempt{attempt(t, failed, setUp), attempt(t, nil, passes), attempt(t, nil, passes)}, "", "passed 2 of 3 times: restarts keep flows"},
		"the set-up always fails":  {[]Attempt{attempt(t, failed, setUp), attempt(t, failed, setUp), attempt(t, failed, setUp)}, "the suite: BeforeSuite", "passed 0 of 3 times: the suite: BeforeSuite"},
		"a known defect":           {[]Attempt{attempt(t, failed, defect), attempt(t, failed, defect), attempt(t, nil, fixed)}, "", "known defect, passed 1 of 3 times: restarts keep flows"},
		"a known defect is fixed":  {[]Attempt{attempt(t, nil, fixed), attempt(t, failed, defect), attempt(t, nil, fixed)}, "", "remove the label known-defect: restarts keep flows"},
		"timeouts of two suites":   {[]Attempt{attemptOf(t, failed, interrupted), attemptOf(t, failed, interrupted), attempt(t, nil, passes)}, "the suite: Suite Timeout Elapsed", ""},
		"a timeout of one suite":   {[]Attempt{attemptOf(t, failed, interrupted), attempt(t, nil, passes), attempt(t, nil, passes)}, "", "2 specs passed"},
		"a failure outside specs":  {[]Attempt{attempt(t, failed, passes), attempt(t, failed, passes), attempt(t, nil, passes)}, "exit status of the program", ""},
		"no spec, by a bad filter": {[]Attempt{attempt(t, nil, deselected), attempt(t, nil, deselected), attempt(t, nil, deselected)}, "no spec ran", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := Verdict(&out, runs(t, tt.attempts...), 2)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if !strings.Contains(out.String(), tt.out) {
				t.Errorf("output %q, want %q", out.String(), tt.out)
			}
		})
	}
}

func TestEachRunOfTheGatesSpecsMustPass(t *testing.T) {
	passes, fails := spec("keep flows", types.SpecStatePassed), spec("keep flows", types.SpecStateFailed)
	err := Verdict(io.Discard, runs(t, attempt(t, nil, passes), attempt(t, errors.New("exit status 1"), fails), attempt(t, nil, passes)), 3)
	if err == nil || !strings.Contains(err.Error(), "fewer than 3 of 3 runs:\n  restarts keep flows") {
		t.Errorf("error %v", err)
	}
}

func TestARunWithoutAReportIsAnError(t *testing.T) {
	_, err := ReadRuns([]Attempt{{Report: filepath.Join(t.TempDir(), "missing.json"), Exit: errors.New("signal: killed")}})
	if err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("error %v, want one with the reason", err)
	}
}

func TestValuesOfRunsAreAddedToTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "_output", "timing.csv")
	gap := func(seconds float64) types.SpecReport {
		// A spec may measure one value several times: the greatest counts.
		return spec("keep flows, \"all\"", types.SpecStatePassed, Timing{"gap", seconds, 3}, Timing{"gap", seconds / 2, 3}, Timing{"pod", 1, 9})
	}
	at := time.Date(2026, 11, 28, 23, 0, 0, 0, time.UTC)
	for i, commit := range []string{"aaa", "bbb"} {
		values := Values(runs(t, attempt(t, nil, gap(2)), attempt(t, nil, gap(1)), attempt(t, nil, spec("keep flows", types.SpecStatePassed))))
		if _, err := Record(path, commit, at.AddDate(0, 0, i), values); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := `commit,time,spec,value,limit,median,first,second,third
aaa,2026-11-28T23:00:00Z,"restarts keep flows, ""all""",gap,3.000,1.500,2.000,1.000,
aaa,2026-11-28T23:00:00Z,"restarts keep flows, ""all""",pod,9.000,1.000,1.000,1.000,
bbb,2026-11-29T23:00:00Z,"restarts keep flows, ""all""",gap,3.000,1.500,2.000,1.000,
bbb,2026-11-29T23:00:00Z,"restarts keep flows, ""all""",pod,9.000,1.000,1.000,1.000,
`
	if string(got) != want {
		t.Errorf("file:\n%swant:\n%s", got, want)
	}
}

func TestTrends(t *testing.T) {
	for name, tt := range map[string]struct {
		before []float64
		last   float64
		want   bool
	}{
		"as usual":                            {[]float64{1, 1.1, 0.9}, 1.2, false},
		"30 % more":                           {[]float64{1, 1, 1}, 1.3, false},
		"31 % more":                           {[]float64{1, 1, 1}, 1.31, true},
		"one earlier value is greater":        {[]float64{1, 9, 1}, 2, true},
		"two earlier values say nothing":      {[]float64{1, 1}, 9, false},
		"only the last ten values count":      {[]float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}, 9, false},
		"and the last ten have a median of 4": {[]float64{9, 9, 9, 3, 3, 3, 3, 3, 5, 5, 5, 5, 5}, 5.3, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "timing.csv")
			record := func(seconds float64) []string {
				values := Values(runs(t, attempt(t, nil, spec("s", types.SpecStatePassed, Timing{"gap", seconds, 20}, Timing{"other", 1, 20}))))
				trends, err := Record(path, "aaa", time.Now(), values)
				if err != nil {
					t.Fatal(err)
				}
				return trends
			}
			for _, seconds := range tt.before {
				record(seconds)
			}
			trends := record(tt.last)
			if (len(trends) == 1) != tt.want || len(trends) > 1 {
				t.Fatalf("trends %q, want one: %t", trends, tt.want)
			}
			if line := fmt.Sprintf("trend: gap of \"restarts s\" is %.3f s, ", tt.last); tt.want && !strings.HasPrefix(trends[0], line) {
				t.Errorf("trend %q, want %q", trends[0], line)
			}
		})
	}
}
