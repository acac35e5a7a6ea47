// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	ginkgotypes "github.com/onsi/ginkgo/v2/types"

	table "github.com/kiln-net/kiln/hack/lab/suite"
)

// TestEachSpecRunsInASuite checks that a suite of the table of hack/lab/suite selects each spec.
func TestEachSpecRunsInASuite(t *testing.T) {
	all := selectors(t)
	for i := range preview() {
		spec := &preview()[i]
		if !slices.ContainsFunc(all, func(s selector) bool { return s.selects(spec) }) {
			t.Errorf("%s: no suite of the table selects %q with the labels %q", placeOf(spec.LeafNodeLocation), spec.FullText(), spec.Labels())
		}
	}
}

// TestEachRunHasSpecs finds filters that select nothing.
func TestEachRunHasSpecs(t *testing.T) {
	for _, s := range selectors(t) {
		if !slices.ContainsFunc(preview(), func(spec ginkgotypes.SpecReport) bool { return s.selects(&spec) }) {
			t.Errorf("%s: %+v selects no spec", s.Suite, s.Selection)
		}
	}
}

// TestKernelGroupsHaveAllSpecs finds specs that `make test-kernel` forgets: its label filter selects them, but their files are in none of its groups.
func TestKernelGroupsHaveAllSpecs(t *testing.T) {
	groups := slices.DeleteFunc(selectors(t), func(s selector) bool { return s.Suite != "test-kernel" })
	if len(groups) == 0 {
		t.Fatal("test-kernel has no groups")
	}
	for _, group := range groups {
		for _, file := range group.Files {
			if _, err := os.Stat(strings.TrimPrefix(file, "/")); err != nil {
				t.Errorf("a group of test-kernel has a file that does not exist: %v", err)
			}
		}
	}
	for i := range preview() {
		spec := &preview()[i]
		filtered := func(s selector) bool { return s.labels(spec.Labels()) }
		if slices.ContainsFunc(groups, filtered) && !slices.ContainsFunc(groups, func(s selector) bool { return s.selects(spec) }) {
			t.Errorf("%s: the files of %q are in no group of kernelGroups: %q", placeOf(spec.LeafNodeLocation), spec.FullText(), places(spec))
		}
	}
}

// TestEachSpecIsInAContainer finds calls of It in functions that no container calls. Such specs never run.
func TestEachSpecIsInAContainer(t *testing.T) {
	run := map[place]bool{}
	for i := range preview() {
		run[placeOf(preview()[i].LeafNodeLocation)] = true
	}
	for at := range parseSource(t).specs {
		if !run[at] {
			t.Errorf("%s: ginkgo does not know this spec: no container calls the function that declares it", at)
		}
	}
}

// selector selects specs as ginkgo does with the flags of a run.
type selector struct {
	table.Selection
	labels ginkgotypes.LabelFilter
	texts  []*regexp.Regexp
	files  ginkgotypes.FileFilters
}

// selectors returns a selector for each run of this package in the table.
func selectors(t *testing.T) []selector {
	t.Helper()
	selections, err := table.Selections()
	if err != nil {
		t.Fatal(err)
	}
	var all []selector
	for _, selection := range selections {
		s := selector{Selection: selection}
		if s.labels, err = ginkgotypes.ParseLabelFilter(selection.Labels); err != nil {
			t.Fatalf("the label filter %q: %v", selection.Labels, err)
		}
		if s.files, err = ginkgotypes.ParseFileFilters(selection.Files); err != nil {
			t.Fatalf("the files %q: %v", selection.Files, err)
		}
		for _, text := range selection.Focus {
			s.texts = append(s.texts, regexp.MustCompile(text))
		}
		all = append(all, s)
	}
	return all
}

func (s selector) selects(spec *ginkgotypes.SpecReport) bool {
	return s.labels(spec.Labels()) &&
		(len(s.texts) == 0 || slices.ContainsFunc(s.texts, func(r *regexp.Regexp) bool { return r.MatchString(spec.FullText()) })) &&
		(len(s.files) == 0 || s.files.Matches(locations(spec)))
}

// locations returns where the spec and its containers are. Ginkgo counts the places of hooks, too: a group that has a spec only by a hook has it by accident.
func locations(spec *ginkgotypes.SpecReport) []ginkgotypes.CodeLocation {
	return append(slices.Clone(spec.ContainerHierarchyLocations), spec.LeafNodeLocation)
}

func places(spec *ginkgotypes.SpecReport) (list []string) {
	for _, l := range locations(spec) {
		list = append(list, placeOf(l).String())
	}
	return list
}
