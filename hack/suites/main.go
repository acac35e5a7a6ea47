// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command suites writes the make targets of the suites in the lab, and the workflows that run suites, from the table in hack/lab/suite.
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/kiln-net/kiln/hack/lab/suite"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	files, err := render()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(filepath.Join(root, name), files[name], 0o644); err != nil {
			return fmt.Errorf("write a file of the table: %w", err)
		}
	}
	return nil
}

// workflow is a workflow that runs suites.
type workflow struct {
	Name string
	// Cron is its schedule; without one, a person chooses one of Targets.
	Cron    string
	Suites  []suite.Suite
	Targets string
}

//go:embed workflow.yaml.tmpl
var workflowText string

//go:embed suites.mk.tmpl
var makefileText string

// render returns the files of the table, by their path in the repository.
func render() (map[string][]byte, error) {
	inLab, targets := []suite.Suite{}, []string{}
	for _, s := range suite.All {
		if s.InLab() {
			inLab = append(inLab, s)
		}
	}
	for _, s := range suite.ThatRun(suite.Night, suite.Week) {
		targets = append(targets, s.Name)
	}
	files := map[string][]byte{}
	var err error
	if files["hack/lab/suite/suites.mk"], err = execute(makefileText, "", "", inLab); err != nil {
		return nil, err
	}
	// The expressions of workflows have the usual delimiters of templates.
	for _, w := range []workflow{
		{Name: "nightly", Cron: "23 1 * * *", Suites: suite.ThatRun(suite.Night)},
		{Name: "weekly", Cron: "23 5 * * 6", Suites: suite.ThatRun(suite.Week)},
		{Name: "e2e", Targets: strings.Join(targets, ", ")},
	} {
		if files[".github/workflows/"+w.Name+".yaml"], err = execute(workflowText, "[[", "]]", w); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func execute(text, left, right string, data any) ([]byte, error) {
	t, err := template.New("").Delims(left, right).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse a template: %w", err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return nil, fmt.Errorf("fill a template: %w", err)
	}
	return out.Bytes(), nil
}
