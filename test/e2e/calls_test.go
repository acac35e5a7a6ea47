// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"
)

// Names of functions of ginkgo. hookNodes run before and after the specs of a container.
var (
	containerNodes = []string{"Describe", "Context", "When", "DescribeTable"}
	specNodes      = []string{"It", "PIt", "Specify", "Entry"}
	hookNodes      = []string{"BeforeEach", "JustBeforeEach", "BeforeAll", "AfterEach", "JustAfterEach", "AfterAll", "DeferCleanup"}
)

// place is a line of a file of this package.
type place struct {
	file string
	line int
}

func placeOf(l types.CodeLocation) place { return place{filepath.Base(l.FileName), l.LineNumber} }

func (p place) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// source is what the source of this package says about its functions, and about the specs and containers of ginkgo.
type source struct {
	set *token.FileSet
	// declarations has the declarations of all files, by position.
	declarations []ast.Decl
	// functions and methods have the bodies by name, also of functions that are values of variables. Methods of different types that have one name count as one.
	functions, methods map[string][]ast.Node
	// locals are functions that are values of variables of a declaration.
	locals map[ast.Decl]map[string][]ast.Node
	// declared has the names of the functions and methods of this package, and of the methods of test/oracle.
	declared map[string]bool
	// specs and containers have the calls that declare them.
	specs, containers map[place]*ast.CallExpr
	// hooks are those outside of containers, which run for each spec.
	hooks []ast.Node
}

func parseSource(t *testing.T) *source {
	t.Helper()
	s := &source{
		set: token.NewFileSet(), functions: map[string][]ast.Node{}, methods: map[string][]ast.Node{}, declared: map[string]bool{},
		locals: map[ast.Decl]map[string][]ast.Node{}, specs: map[place]*ast.CallExpr{}, containers: map[place]*ast.CallExpr{},
	}
	for _, file := range s.parse(t, "*_test.go") {
		s.declarations = append(s.declarations, file.Decls...)
	}
	for _, d := range s.declarations {
		s.locals[d] = map[string][]ast.Node{}
		ast.Inspect(d, func(n ast.Node) bool { s.add(d, n); return true })
	}
	for _, d := range s.declarations {
		if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.VAR {
			s.hooks = append(s.hooks, s.hooksIn(d, map[ast.Node]bool{})...)
		}
	}
	for _, file := range s.parse(t, "../oracle/*.go") {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil {
				s.declared[f.Name.Name] = true
			}
		}
	}
	return s
}

func (s *source) parse(t *testing.T, pattern string) []*ast.File {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("no source files %s: %v", pattern, err)
	}
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(s.set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// add adds a node of a declaration to the functions, specs and containers.
func (s *source) add(in ast.Decl, n ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		into := s.functions
		if n.Recv != nil {
			into = s.methods
		}
		into[n.Name.Name] = append(into[n.Name.Name], n.Body)
		s.declared[n.Name.Name] = true
	case *ast.AssignStmt:
		assign(s.locals[in], n.Lhs, n.Rhs)
	case *ast.ValueSpec:
		var names []ast.Expr
		for _, name := range n.Names {
			names = append(names, name)
		}
		into := s.locals[in]
		if d, ok := in.(*ast.GenDecl); ok && slices.Contains(d.Specs, ast.Spec(n)) {
			into = s.functions
		}
		assign(into, names, n.Values)
	case *ast.CallExpr:
		at := s.set.Position(n.Pos())
		switch name := called(n); {
		case slices.Contains(specNodes, name):
			s.specs[place{filepath.Base(at.Filename), at.Line}] = n
		case slices.Contains(containerNodes, name):
			s.containers[place{filepath.Base(at.Filename), at.Line}] = n
		}
	}
}

// assign adds variables whose values are functions, names of functions, or tables, which may have functions.
func assign(into map[string][]ast.Node, to, values []ast.Expr) {
	if len(to) != len(values) {
		return
	}
	for i, value := range values {
		name, ok := to[i].(*ast.Ident)
		if !ok || name.Name == "_" {
			continue
		}
		switch value := value.(type) {
		case *ast.FuncLit:
			into[name.Name] = append(into[name.Name], value.Body)
		case *ast.Ident, *ast.SelectorExpr, *ast.CompositeLit:
			into[name.Name] = append(into[name.Name], value)
		}
	}
}

// bodies returns the bodies of a function, or after a dot of methods, that a node mentions.
func (s *source) bodies(from ast.Node, name string) []ast.Node {
	if method, ok := strings.CutPrefix(name, "."); ok {
		return s.methods[method]
	}
	i, _ := slices.BinarySearchFunc(s.declarations, from.Pos(), func(d ast.Decl, at token.Pos) int { return cmp.Compare(d.End(), at) })
	return slices.Concat(s.locals[s.declarations[i]][name], s.functions[name])
}

// called returns the name of the function that is called, or nothing if it is a method or of another package.
func called(call *ast.CallExpr) string {
	if name, ok := call.Fun.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

// timedHelper returns the way from a spec, or from a hook of its containers, to a timed helper, or nothing. It is an error if the source does not have the spec
// or a container where the report has it: then its calls are unknown.
func (s *source) timedHelper(spec *types.SpecReport) (string, error) {
	leaf, ok := s.specs[placeOf(spec.LeafNodeLocation)]
	if !ok {
		return "", fmt.Errorf("no call of %q is at %s", specNodes, placeOf(spec.LeafNodeLocation))
	}
	roots := []ast.Node{leaf}
	for _, at := range spec.ContainerHierarchyLocations {
		container, ok := s.containers[placeOf(at)]
		if !ok {
			return "", fmt.Errorf("no call of %q is at %s", containerNodes, placeOf(at))
		}
		for _, arg := range container.Args {
			if entry, ok := arg.(*ast.CallExpr); called(container) == "DescribeTable" && (!ok || !slices.Contains(specNodes, called(entry))) {
				roots = append(roots, arg) // the function of the table
			}
			roots = append(roots, s.hooksIn(arg, map[ast.Node]bool{})...)
		}
	}
	return s.firstWay(roots), nil
}

// firstWay returns the way from one of the nodes to a timed helper, or nothing.
func (s *source) firstWay(from []ast.Node) string {
	for _, node := range from {
		if way := s.way(node, map[ast.Node]bool{}); way != nil {
			return strings.Join(way, " → ")
		}
	}
	return ""
}

// hooksIn returns the hooks that a node declares, also in functions that it calls, but not in containers in it. It leaves out specs.
func (s *source) hooksIn(n ast.Node, seen map[ast.Node]bool) (found []ast.Node) {
	if seen[n] {
		return nil
	}
	seen[n] = true
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		name := called(call)
		switch {
		case slices.Contains(hookNodes, name):
			found = append(found, call)
			return false
		case slices.Contains(specNodes, name), slices.Contains(containerNodes, name):
			return false
		}
		if selector, ok := call.Fun.(*ast.SelectorExpr); ok {
			name = "." + selector.Sel.Name
		}
		for _, body := range s.bodies(call, name) {
			found = append(found, s.hooksIn(body, seen)...)
		}
		return true
	})
	return found
}

// way returns the names on a way from a node to a timed helper.
func (s *source) way(from ast.Node, seen map[ast.Node]bool) []string {
	if seen[from] {
		return nil
	}
	seen[from] = true
	for _, name := range names(from) {
		if slices.Contains(untimed, strings.TrimPrefix(name, ".")) {
			continue
		}
		if slices.Contains(timedHelpers, strings.TrimPrefix(name, ".")) {
			return []string{name}
		}
		for _, body := range s.bodies(from, name) {
			if way := s.way(body, seen); way != nil {
				return append([]string{name}, way...)
			}
		}
	}
	return nil
}

// names returns the names that a node mentions, sorted: functions, and after a dot methods. A table of functions mentions them, too.
func names(from ast.Node) []string {
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
