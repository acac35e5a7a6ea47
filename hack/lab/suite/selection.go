// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"fmt"
	"slices"
	"strings"
)

// Selection is what a run of test/e2e selects by flags of ginkgo.
type Selection struct {
	Suite string
	// Labels is the label filter. It may be empty.
	Labels string
	// Focus are regular expressions of texts, and Files of files. Specs match one of each, if there are any.
	Focus, Files []string
}

// Selections returns what each run of test/e2e in the table selects, with the defaults of variables.
func Selections() ([]Selection, error) {
	var selections []Selection
	for _, s := range All {
		if s.labs == nil {
			continue
		}
		labs, err := s.labs(s.in("/src", func(string) string { return "" }))
		if err != nil {
			return nil, fmt.Errorf("the labs of %s: %w", s.Name, err)
		}
		for _, lab := range labs {
			for _, run := range lab.Runs {
				if slices.Equal(run.Program.Command, endToEnd.Command) {
					selections = append(selections, run.selection(s.Name))
				}
			}
		}
	}
	return selections, nil
}

func (r Run) selection(suite string) Selection {
	selection := Selection{Suite: suite}
	for _, arg := range r.Args {
		switch name, value, _ := strings.Cut(arg, "="); name {
		case "-ginkgo.label-filter":
			selection.Labels = value
		case "-ginkgo.focus":
			selection.Focus = append(selection.Focus, value)
		case "-ginkgo.focus-file":
			selection.Files = append(selection.Files, value)
		}
	}
	return selection
}
