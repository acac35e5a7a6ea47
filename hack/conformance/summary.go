// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// summary is the outcome of a run: its tests and the failures of the suite itself.
type summary struct {
	tests []types.SpecReport
	// suite lists the reasons why the suite as a whole failed outside of a test: its set-up, an interrupt, a time-out.
	suite []string
	took  time.Duration
}

// readSummary reads ginkgo's JSON report. It leaves out tests that the focus or the skip expression deselected.
func readSummary(path string) (summary, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return summary{}, fmt.Errorf("read the report of the tests: %w", err)
	}
	var reports []types.Report
	if err := json.Unmarshal(raw, &reports); err != nil {
		return summary{}, fmt.Errorf("decode the report of the tests: %w", err)
	}
	var s summary
	for _, report := range reports {
		s.took += report.RunTime
		s.suite = append(s.suite, report.SpecialSuiteFailureReasons...)
		for _, t := range report.SpecReports {
			if t.LeafNodeType == types.NodeTypeIt && !t.State.Is(types.SpecStatePending) && !deselected(t) || t.Failed() {
				s.tests = append(s.tests, t)
			}
		}
	}
	slices.SortFunc(s.tests, func(a, b types.SpecReport) int {
		return cmp.Or(cmp.Compare(b.State&types.SpecStateFailureStates, a.State&types.SpecStateFailureStates), cmp.Compare(name(a), name(b)))
	})
	return s, nil
}

// deselected reports whether the focus left the test out. A test that skips itself while it runs has a message with the reason; a
// deselected test has none.
func deselected(t types.SpecReport) bool {
	return t.State.Is(types.SpecStateSkipped) && t.Failure.Message == ""
}

func (s summary) count(states types.SpecState) (n int) {
	for _, t := range s.tests {
		if t.State.Is(states) {
			n++
		}
	}
	return n
}

func (s summary) failed() int { return s.count(types.SpecStateFailureStates) }

// verdict is an error unless tests ran and none failed.
func (s summary) verdict() error {
	if n := s.failed(); n > 0 {
		return fmt.Errorf("%d of %d tests failed", n, len(s.tests))
	}
	if len(s.suite) > 0 {
		return errors.New(strings.Join(s.suite, "; "))
	}
	if s.count(types.SpecStatePassed) == 0 {
		return errors.New("no test ran")
	}
	return nil
}

// markdown renders the summary as a page: counts, failures with their messages, and each test.
func (s summary) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d passed, %d failed, %d had nothing to do here; %s.\n", s.count(types.SpecStatePassed), s.failed(),
		s.count(types.SpecStateSkipped), s.took.Round(time.Second))
	for _, reason := range s.suite {
		fmt.Fprintf(&b, "\nThe suite failed: %s.\n", reason)
	}
	for _, t := range s.tests {
		if t.Failed() {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```\n%s\n```\n", name(t), t.FailureLocation(), shortened(t.FailureMessage(), 2000))
		}
	}
	b.WriteString("\n| | s | test |\n|---|---|---|\n")
	for _, t := range s.tests {
		fmt.Fprintf(&b, "| %s | %.0f | %s |\n", t.State, t.RunTime.Seconds(), name(t))
	}
	return b.String()
}

func name(t types.SpecReport) string {
	return strings.Join(append(slices.Clone(t.ContainerHierarchyTexts), t.LeafNodeText), " ")
}

// shortened returns the beginning of a message; the log has the whole message.
func shortened(message string, length int) string {
	message = strings.TrimSpace(message)
	if len(message) <= length {
		return message
	}
	return strings.ToValidUTF8(message[:length], "") + " …"
}

// write writes the summary file next to the other files and reports the outcome.
func (c *conformance) write(s summary) error {
	path := filepath.Join(c.output, summaryFile)
	if err := os.WriteFile(path, []byte(s.markdown()), 0o644); err != nil {
		return fmt.Errorf("write the summary: %w", err)
	}
	for _, t := range s.tests {
		if t.Failed() {
			message, _, _ := strings.Cut(shortened(t.FailureMessage(), 300), "\n")
			c.report.Say("\n%s %s\n    %s\n    %s", strings.ToUpper(t.State.String()), name(t), message, t.FailureLocation())
		}
	}
	c.report.Say("\n%d passed, %d failed, %d had nothing to do here, in %s. Files: %s", s.count(types.SpecStatePassed), s.failed(),
		s.count(types.SpecStateSkipped), s.took.Round(time.Second), c.output)
	return nil
}
