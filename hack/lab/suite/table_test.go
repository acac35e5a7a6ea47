// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/kiln-net/kiln/hack/lab/suite/specs"
)

func TestTheTableIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range All {
		if seen[s.Name] {
			t.Errorf("%s has two rows", s.Name)
		}
		seen[s.Name] = true
		if s.InLab() != (s.Help != "") {
			t.Errorf("%s: suites in a lab have a text for `make`, and others have theirs in the Makefile", s.Name)
		}
		if scheduled := s.Often != Hand && len(s.Of) == 0; scheduled != (s.Limit > 0) {
			t.Errorf("%s: suites that workflows run have a limit, others have none", s.Name)
		}
		for _, member := range s.Of {
			if m, err := Find(member); err != nil || m.labs == nil {
				t.Errorf("%s has %s, which is not a suite in a lab", s.Name, member)
			}
		}
		for _, v := range s.AllVariables() {
			if v.Help == "" {
				t.Errorf("%s does not describe %s", s.Name, v.Name)
			}
		}
	}
}

// TestTargetsOfTheMakefile checks that each suite without a lab has a recipe in the Makefile, with a text for `make`.
func TestTargetsOfTheMakefile(t *testing.T) {
	makefile, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range otherTargets {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(s.Name) + `:.*## `).Match(makefile) {
			t.Errorf("the Makefile has no target %s with a text", s.Name)
		}
	}
}

// TestEachSpecRunsInASuite checks that a suite selects each spec of test/e2e.
func TestEachSpecRunsInASuite(t *testing.T) {
	runs := runsOfEndToEnd(t)
	for _, spec := range endToEndSpecs(t) {
		if !slices.ContainsFunc(runs, func(r Run) bool { return selects(t, r, spec) }) {
			t.Errorf("%s:%d: no suite of the table selects %q with the labels %q", spec.Files[len(spec.Files)-1], spec.Line, spec.Text, spec.Labels)
		}
	}
}

// TestEachRunHasSpecs finds filters that select nothing.
func TestEachRunHasSpecs(t *testing.T) {
	all := endToEndSpecs(t)
	for _, run := range runsOfEndToEnd(t) {
		if !slices.ContainsFunc(all, func(s specs.Spec) bool { return selects(t, run, s) }) {
			t.Errorf("%q selects no spec", run.Args)
		}
	}
}

// TestKernelGroupsHaveAllSpecs finds specs that `make test-kernel` forgets: their files are in no group.
func TestKernelGroupsHaveAllSpecs(t *testing.T) {
	grouped := map[string]bool{}
	for _, g := range kernelGroups {
		for _, file := range g.files {
			grouped[specFile(file)] = true
			if _, err := os.Stat(filepath.Join(endToEndDir, specFile(file))); err != nil {
				t.Errorf("group %s has a file that does not exist: %v", g.name, err)
			}
		}
	}
	filter := labelFilter(t, inKernelGroup)
	for _, spec := range endToEndSpecs(t) {
		if filter(spec.Labels) && !slices.ContainsFunc(spec.Files, func(file string) bool { return grouped[file] }) {
			t.Errorf("%s:%d: the files of %q are in no group of kernelGroups: %q", spec.Files[len(spec.Files)-1], spec.Line, spec.Text, spec.Files)
		}
	}
}

func TestUnknownPartsAreRefused(t *testing.T) {
	for name, variable := range map[string]string{"test-kernel": "GROUP", "test-install": "WAYS"} {
		s, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.labs(s.in("/src", func(string) string { return "nosuch" }))
		if err == nil || !strings.Contains(err.Error(), `"nosuch"`) || !strings.Contains(err.Error(), variable+" has ") {
			t.Errorf("%s=nosuch: %v", variable, err)
		}
	}
}

func TestSettingsAreValuesOtherThanDefaults(t *testing.T) {
	s, err := Find("crashes")
	if err != nil {
		t.Fatal(err)
	}
	environment := map[string]string{"CRASHES": "3", "WORKERS": "2", "DATAPATH": "kernel", "GROUP": "services"}
	got := s.Settings(func(name string) string { return environment[name] })
	if want := []string{"DATAPATH=kernel", "CRASHES=3"}; !slices.Equal(got, want) {
		t.Errorf("settings %q, want %q", got, want)
	}
}

const endToEndDir = "../../../test/e2e"

func endToEndSpecs(t *testing.T) []specs.Spec {
	t.Helper()
	all, err := specs.Read(endToEndDir)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 150 {
		t.Fatalf("found only %d specs in test/e2e", len(all))
	}
	return all
}

// runsOfEndToEnd returns the runs of test/e2e in all suites, with the defaults of variables.
func runsOfEndToEnd(t *testing.T) []Run {
	t.Helper()
	var runs []Run
	for _, s := range All {
		if s.labs == nil {
			continue
		}
		labs, err := s.labs(s.in("/src", func(string) string { return "" }))
		if err != nil {
			t.Fatal(err)
		}
		for _, lab := range labs {
			for _, run := range lab.Runs {
				if slices.Equal(run.Program.Command, endToEnd.Command) {
					runs = append(runs, run)
				}
			}
		}
	}
	return runs
}

// selects reports whether ginkgo runs a spec with the arguments of a run.
func selects(t *testing.T, run Run, spec specs.Spec) bool {
	t.Helper()
	var files []string
	for _, arg := range run.Args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "-ginkgo.label-filter":
			if !labelFilter(t, value)(spec.Labels) {
				return false
			}
		case "-ginkgo.focus":
			if !regexp.MustCompile(value).MatchString(spec.Text) {
				return false
			}
		case "-ginkgo.focus-file":
			files = append(files, strings.TrimPrefix(value, "/"))
		}
	}
	return len(files) == 0 || slices.ContainsFunc(spec.Files, func(file string) bool { return slices.Contains(files, file) })
}

func labelFilter(t *testing.T, text string) types.LabelFilter {
	t.Helper()
	filter, err := types.ParseLabelFilter(text)
	if err != nil {
		t.Fatalf("the label filter %q: %v", text, err)
	}
	return filter
}
