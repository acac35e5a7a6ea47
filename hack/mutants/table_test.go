// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	root  = "../.."
	page  = root + "/docs/development/tests.md"
	least = 60 // mutants
)

// areas are the packages whose decisions have mutants.
var areas = []string{
	"internal/address/ipam", "internal/address/allocations", "internal/northbound", "internal/northbound/translate", "controllers/policy", "controllers/operator/raft",
	"controllers/operator/rollout", "internal/validation", "cni/plugin", "cni/wire", "agent/host",
}

// TestTheTableIsValid finds the errors of the table that a run would report after minutes: a changed file no longer has the text.
func TestTheTableIsValid(t *testing.T) {
	mutants := table()
	if len(mutants) < least {
		t.Errorf("there are %d mutants, want %d or more", len(mutants), least)
	}
	seen, covered := map[string]bool{}, map[string]bool{}
	for _, m := range mutants {
		covered[filepath.Dir(m.file)] = true
		if seen[m.id] || !regexp.MustCompile(`^[a-z]+(-[a-z0-9]+)+$`).MatchString(m.id) {
			t.Errorf("the id %q appears twice, or is not of words with dashes between them", m.id)
		}
		seen[m.id] = true
		if m.bug == "" || strings.Contains(m.bug, "|") || m.old == m.new || strings.HasSuffix(m.file, "_test.go") {
			t.Errorf("%s needs a description, a change, and a file of the product", m.id)
		}
		content, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Errorf("%s: %v", m.id, err)
			continue
		}
		changed, err := m.apply(string(content))
		if err != nil {
			t.Errorf("%s: %v", m.id, err)
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), m.file, changed, parser.SkipObjectResolution); err != nil {
			t.Errorf("%s does not parse: %v", m.id, err)
		}
	}
	for _, area := range areas {
		if !covered[area] {
			t.Errorf("no mutant is in %s", area)
		}
	}
}

// TestRunExpressionsMatchTests: a mutant whose expression matches no test of its packages would count as invalid after minutes.
func TestRunExpressionsMatchTests(t *testing.T) {
	names := map[string][]string{}
	for _, m := range table() {
		expression, err := regexp.Compile(m.run)
		if err != nil {
			t.Errorf("%s: %v", m.id, err)
			continue
		}
		matches := func(name string) bool { return expression.MatchString(name) }
		for _, name := range m.packages() {
			if names[name] == nil {
				names[name] = testsOf(t, filepath.Join(root, name))
			}
			if !slices.ContainsFunc(names[name], matches) {
				t.Errorf("%s: %q matches no test of %s", m.id, m.run, name)
			}
		}
	}
}

// testsOf returns the names of the tests in a directory.
func testsOf(t *testing.T, directory string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(directory, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no tests: %v", directory, err)
	}
	var names []string
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Test") {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

// TestThePageHasEachMutant: a new mutant was run, and its verdict is in the page.
func TestThePageHasEachMutant(t *testing.T) {
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	said, missing := rowsOf(string(content)), []string{}
	for _, m := range table() {
		verdict, ok := said[m.id]
		delete(said, m.id)
		switch {
		case !ok:
			missing = append(missing, m.id)
		case m.survives != "" && verdict != "survives: "+m.survives, m.survives == "" && !strings.HasPrefix(verdict, "killed"):
			t.Errorf("%s has the verdict %q in %s", m.id, verdict, page)
		}
	}
	if len(missing) > 0 {
		t.Errorf("run the new mutants: go run ./hack/mutants -id '^(%s)$' -page docs/development/tests.md", strings.Join(missing, "|"))
	}
	for id := range said {
		t.Errorf("%s has a row of %s, which is no mutant", page, id)
	}
}
