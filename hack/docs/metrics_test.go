// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs checks pages of the documentation against the code.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// TestMetricsAreDocumented compares the names and labels of all metrics in the code with the tables of docs/operations/metrics.md, in both
// directions.
func TestMetricsAreDocumented(t *testing.T) {
	defined, documented := definedMetrics(t), documentedMetrics(t)
	if len(defined) < 30 {
		t.Fatalf("the code has %d metrics: this proves nothing", len(defined))
	}
	for _, name := range slices.Sorted(maps.Keys(defined)) {
		labels, there := documented[name]
		switch {
		case !there:
			t.Errorf("%s is not in docs/operations/metrics.md", name)
		case !slices.Equal(slices.Sorted(slices.Values(labels)), slices.Sorted(slices.Values(defined[name]))):
			t.Errorf("%s has the labels %v, and in docs/operations/metrics.md %v", name, defined[name], labels)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if _, there := defined[name]; !there {
			t.Errorf("%s is in docs/operations/metrics.md only", name)
		}
	}
}

// definedMetrics returns the labels of all metrics that the programs define, by name.
func definedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, dir := range []string{"agent", "cmd", "controllers", "internal", "supervisor"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, isCall := n.(*ast.CallExpr)
				if !isCall || len(call.Args) == 0 {
					return true
				}
				maker, isSelector := call.Fun.(*ast.SelectorExpr)
				if !isSelector {
					return true
				}
				if of, isName := maker.X.(*ast.Ident); !isName || of.Name != "prometheus" || !strings.HasPrefix(maker.Sel.Name, "New") {
					return true
				}
				if name := metricName(call.Args[0]); name != "" {
					labels, inSource := labelNames(maker.Sel.Name, call.Args)
					if !inSource {
						t.Errorf("%s: the labels of %s are not a list in the call", path, name)
					}
					found[name] = labels
				} else if !strings.HasSuffix(maker.Sel.Name, "Registry") {
					t.Errorf("%s: the name of the metric in prometheus.%s is not a string in the source", path, maker.Sel.Name)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// metricName returns the name of a metric: the string literal itself (NewDesc), or the field Name of an options literal.
func metricName(arg ast.Expr) string {
	switch arg := arg.(type) {
	case *ast.BasicLit:
		name, _ := strconv.Unquote(arg.Value)
		return name
	case *ast.CompositeLit:
		for _, element := range arg.Elts {
			if field, isField := element.(*ast.KeyValueExpr); isField && field.Key.(*ast.Ident).Name == "Name" {
				return metricName(field.Value)
			}
		}
	}
	return ""
}

// labelNames returns the labels of a metric, and false if they are not a list in the source.
func labelNames(maker string, args []ast.Expr) (labels []string, inSource bool) {
	at := 1 // argument index of the labels in NewGaugeVec and the other Vecs
	if maker == "NewDesc" {
		at = 2
	} else if !strings.HasSuffix(maker, "Vec") {
		return nil, true
	}
	switch list := args[at].(type) {
	case *ast.CompositeLit:
		for _, element := range list.Elts {
			labels = append(labels, metricName(element))
		}
		return labels, true
	case *ast.Ident:
		return nil, list.Name == "nil"
	}
	return nil, false
}

var code = regexp.MustCompile("`([^`]+)`")

// documentedMetrics returns the rows of the tables with a column of labels. A label may be followed by its values in parentheses.
func documentedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "operations", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	inTable := false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		switch {
		case strings.HasPrefix(line, "| metric | labels |"):
			inTable = true
		case len(cells) < 4:
			inTable = false
		case inTable && !strings.HasPrefix(line, "|---"):
			var labels []string
			for _, m := range code.FindAllStringSubmatch(regexp.MustCompile(`\([^)]*\)`).ReplaceAllString(cells[2], ""), -1) {
				labels = append(labels, m[1])
			}
			for _, m := range code.FindAllStringSubmatch(cells[1], -1) {
				found[m[1]] = labels
			}
		}
	}
	return found
}
