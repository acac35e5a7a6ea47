// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
)

// Labels that decide which target runs a spec. The labels of suites with a lab of their own are next to their specs.
const (
	// smoke is the label of the specs of the gate, `make test`. They have no limit in seconds on what the product does, so that a busy machine gives the same
	// result. A spec gets it after 10 of 10 runs of `make stress-smoke`.
	smoke = "smoke"
	// timed is the label of specs that judge seconds, gaps or losses. `make test-timing` runs them on an idle machine.
	timed = "timed"
	// unstable is the label of specs that failed in the gate without a known cause. It takes them out of the gate: see unstableSince.
	unstable = "unstable"
)

// At most this many specs are unstable, each for at most this time. Then the cause is known, or the spec is deleted.
const (
	mostUnstable    = 5
	longestUnstable = 14 * 24 * time.Hour
)

// smokeIf returns the label smoke, or none.
func smokeIf(chosen bool) Labels {
	if chosen {
		return Label(smoke)
	}
	return Label()
}

// unstableSince returns the labels of a spec that is unstable since a date, such as 2026-11-28.
//
//nolint:unused // no spec is unstable now
func unstableSince(date string) Labels { return Label(unstable, unstable+"-since-"+date) }

// timedHelpers are functions and methods that judge seconds, gaps or losses, or return limits for it. The functions of this package that call one of them do,
// too.
var timedHelpers = []string{"within", "bound", "losses", "gapsOver", "gapsLongerThan", "Further", "lossLimit"}

// untimed are functions that call a timed helper, but make up for a busy machine in specs without the label timed.
var untimed = []string{"connectsAtOnce"}

// TestLabels checks the labels of all specs. It needs no lab; `make lint` runs it.
func TestLabels(t *testing.T) {
	calls := parseCalls(t)
	unstableSpecs, smokeSpecs := 0, 0
	report := PreviewSpecs("Kiln in the lab")
	for i := range report.SpecReports {
		spec := &report.SpecReports[i]
		labels := spec.Labels()
		has := func(label string) bool { return slices.Contains(labels, label) }
		place := spec.LeafNodeLocation
		if way := calls.timedHelper(filepath.Base(place.FileName), place.LineNumber); way != "" && !has(timed) {
			t.Errorf("%s:%d: %s: judges seconds, gaps or losses by %s: it needs the label timed", filepath.Base(place.FileName), place.LineNumber, spec.FullText(), way)
		}
		if has(smoke) && has(timed) {
			t.Errorf("%s:%d: %s: a spec of the gate cannot be timed", filepath.Base(place.FileName), place.LineNumber, spec.FullText())
		}
		if has(smoke) {
			smokeSpecs++
		}
		if has(unstable) {
			unstableSpecs++
			if !recent(labels) {
				t.Errorf("%s: unstable for more than %s, or without a date: find the cause", spec.FullText(), longestUnstable)
			}
		}
	}
	if unstableSpecs > mostUnstable {
		t.Errorf("%d specs are unstable, more than %d", unstableSpecs, mostUnstable)
	}
	if smokeSpecs < 40 {
		t.Errorf("%d specs have the label smoke: the gate proves little", smokeSpecs)
	}
}

// recent reports whether the labels have a date of unstableSince that is recent enough.
func recent(labels []string) bool {
	for _, l := range labels {
		if date, ok := strings.CutPrefix(l, unstable+"-since-"); ok {
			since, err := time.Parse(time.DateOnly, date)
			return err == nil && time.Since(since) < longestUnstable
		}
	}
	return false
}

// calls is what the source of this package says about its functions and specs.
type calls struct {
	files map[string]*ast.File
	set   *token.FileSet
	// functions and methods have the bodies by name. Methods of different types that have one name count as one.
	functions, methods map[string][]ast.Node
}

func parseCalls(t *testing.T) *calls {
	t.Helper()
	c := &calls{files: map[string]*ast.File{}, set: token.NewFileSet(), functions: map[string][]ast.Node{}, methods: map[string][]ast.Node{}}
	names, err := filepath.Glob("*_test.go")
	if err != nil || len(names) == 0 {
		t.Fatalf("no source files: %v", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(c.set, name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		c.files[name] = file
		ast.Inspect(file, c.add)
	}
	return c
}

// add adds a node of the source to the functions: declarations, and variables whose value is a function.
func (c *calls) add(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		into := c.functions
		if n.Recv != nil {
			into = c.methods
		}
		into[n.Name.Name] = append(into[n.Name.Name], n.Body)
	case *ast.AssignStmt:
		for i, value := range n.Rhs {
			if f, ok := value.(*ast.FuncLit); ok && len(n.Lhs) == len(n.Rhs) {
				if name, ok := n.Lhs[i].(*ast.Ident); ok {
					c.functions[name.Name] = append(c.functions[name.Name], f.Body)
				}
			}
		}
	}
	return true
}

// timedHelper returns the way from the spec at a place to a timed helper, or nothing.
func (c *calls) timedHelper(file string, line int) string {
	var spec ast.Node
	ast.Inspect(c.files[file], func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || c.set.Position(call.Pos()).Line > line || c.set.Position(call.End()).Line < line {
			return true
		}
		if name, ok := call.Fun.(*ast.Ident); ok && slices.Contains([]string{"It", "DescribeTable"}, name.Name) {
			spec = call
		}
		return true
	})
	if spec == nil {
		return ""
	}
	return strings.Join(c.way(spec, map[ast.Node]bool{}), " → ")
}

// way returns the names on a way from a node to a timed helper.
func (c *calls) way(from ast.Node, seen map[ast.Node]bool) []string {
	if seen[from] {
		return nil
	}
	seen[from] = true
	for _, name := range c.names(from) {
		if slices.Contains(untimed, strings.TrimPrefix(name, ".")) {
			continue
		}
		if slices.Contains(timedHelpers, strings.TrimPrefix(name, ".")) {
			return []string{name}
		}
		bodies := c.functions[name]
		if method, ok := strings.CutPrefix(name, "."); ok {
			bodies = c.methods[method]
		}
		for _, body := range bodies {
			if way := c.way(body, seen); way != nil {
				return append([]string{name}, way...)
			}
		}
	}
	return nil
}

// names returns the names that a node mentions, sorted: functions, and after a dot methods. A table of functions mentions them, too.
func (*calls) names(from ast.Node) []string {
	found := map[string]bool{}
	var visit func(ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			found["."+n.Sel.Name] = true
			ast.Inspect(n.X, visit)
			return false
		case *ast.Ident:
			found[n.Name] = true
		}
		return true
	}
	ast.Inspect(from, visit)
	return slices.Sorted(maps.Keys(found))
}
