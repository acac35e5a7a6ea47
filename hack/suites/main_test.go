// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/hack/lab/suite"
)

func TestFilesMatchTheTable(t *testing.T) {
	files, err := render()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is not what the table says: run `make generate` (-want +got):\n%s", name, diff)
		}
	}
}

// TestEachScheduledSuiteHasAJob reads the workflows as a YAML parser does.
func TestEachScheduledSuiteHasAJob(t *testing.T) {
	files, err := render()
	if err != nil {
		t.Fatal(err)
	}
	for name, often := range map[string]suite.Often{"nightly": suite.Night, "weekly": suite.Week} {
		var workflow struct {
			Jobs map[string]struct {
				Strategy struct {
					Matrix struct {
						Include []struct {
							Target  string
							Minutes int
						}
					}
				}
			}
		}
		if err := yaml.Unmarshal(files[".github/workflows/"+name+".yaml"], &workflow); err != nil {
			t.Fatal(err)
		}
		jobs := map[string]int{}
		for _, job := range workflow.Jobs["suite"].Strategy.Matrix.Include {
			jobs[job.Target] = job.Minutes
		}
		want := map[string]int{}
		for _, s := range suite.ThatRun(often) {
			want[s.Name] = int(s.Limit.Minutes())
		}
		if diff := cmp.Diff(want, jobs); diff != "" {
			t.Errorf("jobs of %s (-want +got):\n%s", name, diff)
		}
		for target, minutes := range jobs {
			if minutes < 10 || minutes > 360 {
				t.Errorf("%s may take %d minutes: hosted runners end jobs after six hours", target, minutes)
			}
		}
	}
}

// TestMakeListsEachSuite compares the lines that `make` prints with the table.
func TestMakeListsEachSuite(t *testing.T) {
	files, err := render()
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, found := range regexp.MustCompile(`(?m)^([a-zA-Z0-9_-]+):.*## (.*)$`).FindAllStringSubmatch(string(files["hack/lab/suite/suites.mk"]), -1) {
		listed[found[1]] = found[2]
	}
	for _, s := range suite.All {
		if s.InLab() && (listed[s.Name] != s.Help || strings.Contains(s.Help, "$")) {
			t.Errorf("`make` prints %q for %s, want %q", listed[s.Name], s.Name, s.Help)
		}
	}
}
