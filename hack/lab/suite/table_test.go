// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
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
