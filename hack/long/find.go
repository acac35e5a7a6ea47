// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/kiln-net/kiln/internal/testing/gate"
)

// mark is the call that marks a test, without its arguments.
const mark = "gate.Skip"

// marked are the names of tests, by the directory of their package in the form that go test takes.
type marked map[string][]string

// find returns the marked tests of the packages below a directory, by their target. A mark in a function that is no test is an error.
func find(root string) (map[gate.Target]marked, error) {
	found := map[gate.Target]marked{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (name == "testdata" || strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("read the tests: %w", err)
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return fmt.Errorf("name the package of %s: %w", path, err)
		}
		return add(found, "./"+filepath.ToSlash(dir), file, path)
	})
	return found, err
}

// add adds the marked tests of a file.
func add(found map[gate.Target]marked, dir string, file *ast.File, path string) error {
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Body == nil {
			continue
		}
		inside := 0
		ast.Inspect(function.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && isMark(call) {
				inside++
			}
			return true
		})
		if inside == 0 {
			continue
		}
		name := function.Name.Name
		target, ok := targetOf(function)
		if !ok || inside > 1 || function.Recv != nil || !strings.HasPrefix(name, "Test") {
			return fmt.Errorf("%s: %s: %s must be one statement of a test, outside of other functions and blocks, with a constant of package gate", path, name, mark)
		}
		if found[target] == nil {
			found[target] = marked{}
		}
		found[target][dir] = append(found[target][dir], name)
	}
	return nil
}

// targetOf returns the target that a statement of a function names.
func targetOf(function *ast.FuncDecl) (gate.Target, bool) {
	for _, statement := range function.Body.List {
		expression, ok := statement.(*ast.ExprStmt)
		if !ok {
			continue
		}
		call, ok := expression.X.(*ast.CallExpr)
		if !ok || !isMark(call) || len(call.Args) != 2 {
			continue
		}
		name, ok := call.Args[1].(*ast.SelectorExpr)
		if !ok {
			return "", false
		}
		target, ok := gate.Targets[name.Sel.Name]
		return target, ok
	}
	return "", false
}

func isMark(call *ast.CallExpr) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := selector.X.(*ast.Ident)
	return ok && of.Name+"."+selector.Sel.Name == mark
}
