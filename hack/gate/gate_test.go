// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// longest is the sum that the budgets stay below. The gate's goal is 25 minutes, CI's limit is 90.
const longest = 2000 * time.Second

func TestBudgetsStayBelowTheirLimit(t *testing.T) {
	sum := time.Duration(0)
	for _, s := range stages {
		sum += s.budget
	}
	if sum >= longest {
		t.Errorf("the budgets are %s together, not below %s", sum, longest)
	}
}

func TestEachStageIsATarget(t *testing.T) {
	var targets strings.Builder
	for _, name := range []string{"../../Makefile", "../lab/suite/suites.mk"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		targets.Write(text)
	}
	for _, s := range stages {
		if !strings.Contains(targets.String(), "\n"+s.target+":") {
			t.Errorf("no target %s", s.target)
		}
	}
}

func TestSeedsFollowTheTree(t *testing.T) {
	if got, err := seedOf("0000002a7b86c5eac240f8a2c09663d3f23bf5a8"); err != nil || got != 42 {
		t.Errorf("seed %d, %v", got, err)
	}
	for _, hash := range []string{"", "12345", "g234567890"} {
		if _, err := seedOf(hash); err == nil {
			t.Errorf("%q is no hash", hash)
		}
	}
}

func TestFailuresOfEachTool(t *testing.T) {
	const goTest = `ok  	example/a	1.234s
--- FAIL: TestOne (0.10s)
    --- FAIL: TestOne/sub (0.05s)
        one_test.go:7: got 1, want 2
FAIL
FAIL	example/b	12.500s
ok  	example/c	(cached)
`
	for _, tt := range []struct {
		name, output string
		want, not    []string
	}{
		{"go test", goTest, []string{"TestOne/sub", "one_test.go:7: got 1, want 2", "FAIL\texample/b"}, []string{"example/a"}},
		{"ginkgo", "\x1b[38;5;9m[FAIL] \x1b[0mServices [It] are reached\n• [1.0 seconds]\n", []string{"[FAIL] Services"}, []string{"•"}},
		{"golangci-lint", "controllers/pod/pod.go:12:3: unused (unused)\n1 issues:\n", []string{"controllers/pod/pod.go:12:3"}, []string{"1 issues"}},
		{"an unknown tool", "line 1\nline 2\n", []string{"line 1", "line 2"}, nil},
		{"a panic", "panic: runtime error\ngoroutine 1\n", []string{"panic: runtime error"}, nil},
		{"make", "make: *** [Makefile:1: x] Error 1\nmake[1]: *** [Makefile:9: language] Error 1\n", []string{"make: ***", "9: language"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := failures(tt.output)
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q is missing in:\n%s", want, got)
				}
			}
			for _, not := range tt.not {
				if strings.Contains(got, not) {
					t.Errorf("%q is in:\n%s", not, got)
				}
			}
		})
	}
	if got := strings.Count(failures(strings.Repeat("--- FAIL: TestA (0s)\nok\n", 200)), "\n"); got > mostFailures+1 {
		t.Errorf("%d lines", got)
	}
}

func TestTheSlowestArePrinted(t *testing.T) {
	const output = "ok  \texample/a\t1.5s\nFAIL\texample/b\t20.0s\nok  \texample/c\t0.1s\n" +
		"\x1b[0mServices \x1b[1mare reached\x1b[0m [smoke]\nexample.org/test/e2e/service_test.go:39\n  STEP: one\n\x1b[38;5;10m• [12.500 seconds]\x1b[0m\n"
	if got, want := slowest(output, 3), "    20.0 s  example/b\n    12.5 s  Services are reached [smoke]\n     1.5 s  example/a\n"; got != want {
		t.Errorf("got\n%s want\n%s", got, want)
	}
}

func TestTimesOfTheMachine(t *testing.T) {
	before := parseCPU("cpu  100 0 100 800 0 0 0 0 0 0")
	after := parseCPU("cpu  150 0 120 900 10 0 0 20 7 0")
	if got := after.busySince(before); got != 0.45 {
		t.Errorf("busy for %v of the time", got)
	}
	if got := after.stolenSince(before); got != 0.1 {
		t.Errorf("stolen for %v of the time", got)
	}
	if got := before.busySince(before); got != 0 {
		t.Errorf("busy for %v of no time", got)
	}
}

func TestSummary(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("--- FAIL: TestOne (0.10s)\nFAIL\texample/b\t12.5s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	of := func(took time.Duration, idle bool, err error) result {
		return result{stage: stage{"test-unit", time.Minute}, took: took, idle: idle, err: err, log: log}
	}
	for _, tt := range []struct {
		name    string
		results []result
		budgets bool
		failed  int
		want    string
	}{
		{"a stage that passes", []result{of(time.Second, true, nil)}, true, 0, "passed"},
		{"two stages that fail", []result{of(time.Second, true, errors.New("exit 1")), of(time.Second, true, errors.New("exit 1"))}, true, 2, "TestOne"},
		{"an exceeded budget", []result{of(2*time.Minute, true, nil)}, true, 0, "12.5 s  example/b"},
		{"twice its budget", []result{of(time.Hour, true, nil)}, true, 1, "12.5 s  example/b"},
		{"twice its budget on a busy machine", []result{of(time.Hour, false, nil)}, true, 0, "other processes"},
		{"twice its budget without KILN_BUDGETS", []result{of(time.Hour, true, nil)}, false, 0, "which fails CI"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := &bytes.Buffer{}
			if got := summarize(out, tt.results, tt.budgets); got != tt.failed || !strings.Contains(out.String(), tt.want) {
				t.Errorf("%d failed, want %d and %q in:\n%s", got, tt.failed, tt.want, out)
			}
		})
	}
}
