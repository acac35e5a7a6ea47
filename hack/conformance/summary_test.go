// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

func TestTheVerdictIsGoodOnlyWhenTestsRanAndNoneFailed(t *testing.T) {
	passed := spec("reaches a pod", types.SpecStatePassed, "")
	unasked := spec("binds a volume", types.SpecStateSkipped, "")
	idle := spec("uses a load balancer of a cloud", types.SpecStateSkipped, "only on clouds")
	broken := spec("reaches a Service", types.SpecStateFailed, "timed out")
	late := spec("reaches a node port", types.SpecStateTimedout, "too late")
	setUp := types.SpecReport{LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStateFailed, Failure: types.Failure{Message: "no nodes"}}
	for name, test := range map[string]struct {
		specs   types.SpecReports
		reasons []string
		want    string
	}{
		"tests passed and one had nothing to do":    {specs: types.SpecReports{passed, idle, unasked}},
		"one failed":                                {specs: types.SpecReports{passed, broken}, want: "1 of 2 tests failed"},
		"a failure and a time-out are both counted": {specs: types.SpecReports{broken, passed, late, unasked}, want: "2 of 3 tests failed"},
		"the set-up failed":                         {specs: types.SpecReports{setUp}, want: "1 of 1 tests failed"},
		"the suite was interrupted":                 {specs: types.SpecReports{passed}, reasons: []string{"Interrupted by User"}, want: "Interrupted by User"},
		"nothing matched":                           {specs: types.SpecReports{unasked}, want: "no test ran"},
	} {
		t.Run(name, func(t *testing.T) {
			s := read(t, types.Report{SpecReports: test.specs, SpecialSuiteFailureReasons: test.reasons})
			got := ""
			if err := s.verdict(); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestThePageHasFailuresFirstAndOnlyTheChosenFeatures(t *testing.T) {
	page := read(t, types.Report{RunTime: 90 * time.Second, SpecReports: types.SpecReports{
		spec("reaches a pod", types.SpecStatePassed, ""), spec("binds a volume", types.SpecStateSkipped, ""), spec("reaches a Service", types.SpecStateFailed, "timed out"),
	}}).markdown()
	for _, want := range []string{"1 passed, 1 failed, 0 had nothing to do here; 1m30s.", "## [sig-network] Services reaches a Service", "timed out", "| passed | 3 | [sig-network] Services reaches a pod |"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "binds a volume") {
		t.Errorf("a test that was not asked for is in\n%s", page)
	}
	if strings.Index(page, "| failed |") > strings.Index(page, "| passed |") {
		t.Errorf("failures are not first in\n%s", page)
	}
}

func spec(text string, state types.SpecState, message string) types.SpecReport {
	return types.SpecReport{
		ContainerHierarchyTexts: []string{"[sig-network] Services"}, LeafNodeText: text, LeafNodeType: types.NodeTypeIt,
		State: state, RunTime: 3 * time.Second, Failure: types.Failure{Message: message},
	}
}

// read writes the report to a file and reads it back with readSummary, as ginkgo's own report is read.
func read(t *testing.T, report types.Report) summary {
	t.Helper()
	raw, err := json.Marshal([]types.Report{report})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), reportFile)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := readSummary(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
