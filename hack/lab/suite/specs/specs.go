// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package specs reads the specs of a ginkgo suite from its sources: their texts, labels and files. It runs nothing.
package specs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Spec is a spec, or the specs of a loop.
type Spec struct {
	// Text has the texts of the containers and of the spec, as far as they are constants.
	Text string
	// Labels has the labels of the containers and of the spec.
	Labels []string
	// Files are the names of the files of the spec, of its containers, and of the functions that declare them, from outside to inside.
	Files []string
	// Line is the line of the spec in the last of the files.
	Line int
}

// Names of functions of ginkgo.
var (
	containers = []string{"Describe", "Context", "When", "DescribeTable", "DescribeTableSubtree"}
	subjects   = []string{"It", "Specify", "Entry"}
)

// reader holds the declarations of a package.
type reader struct {
	files     *token.FileSet
	constants map[string]string
	// functions has the functions by name, and the methods by a dot and their name.
	functions map[string]*ast.FuncDecl
	// declares has the result of declaresSpecs for each function.
	declares map[string]bool
	reached  map[string]bool
	specs    []Spec
	err      error
}

// Read returns the specs of the package in a directory.
func Read(dir string) ([]Spec, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("list the files of the suite: %w", err)
	}
	r := &reader{
		files: token.NewFileSet(), constants: map[string]string{}, functions: map[string]*ast.FuncDecl{}, declares: map[string]bool{}, reached: map[string]bool{},
	}
	var parsed []*ast.File
	for _, path := range paths {
		file, err := parser.ParseFile(r.files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse the suite: %w", err)
		}
		parsed = append(parsed, file)
		r.declarations(file)
	}
	for _, file := range parsed {
		for _, decl := range file.Decls {
			if d, is := decl.(*ast.GenDecl); is && d.Tok == token.VAR {
				r.walk(d, Spec{Files: []string{r.file(d)}})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.functions)) {
		if r.declaresSpecs(name) && !r.reached[name] {
			return nil, fmt.Errorf("no container calls %s, which declares specs", strings.TrimPrefix(name, "."))
		}
	}
	return r.specs, r.err
}

// declarations collects the constants and functions of a file.
func (r *reader) declarations(file *ast.File) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = "." + name
			}
			// Of methods with one name, the one that declares specs counts.
			if d.Body != nil && (r.functions[name] == nil || mentions(d.Body, subjects)) {
				r.functions[name] = d
			}
		case *ast.GenDecl:
			if d.Tok == token.CONST {
				r.constantsOf(d)
			}
		}
	}
}

func (r *reader) constantsOf(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		values := spec.(*ast.ValueSpec)
		for i, name := range values.Names {
			if i >= len(values.Values) {
				break
			}
			if text, known := r.text(values.Values[i]); known {
				r.constants[name.Name] = text
			}
		}
	}
}

// text returns the value of a constant expression.
func (r *reader) text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.Ident:
		text, known := r.constants[e.Name]
		return text, known
	case *ast.BinaryExpr:
		x, known := r.text(e.X)
		y, both := r.text(e.Y)
		return x + y, known && both
	case *ast.ParenExpr:
		return r.text(e.X)
	}
	return "", false
}

func (r *reader) file(n ast.Node) string { return filepath.Base(r.files.Position(n.Pos()).Filename) }

// declaresSpecs reports whether a function declares specs, by itself or by functions that it names.
func (r *reader) declaresSpecs(name string) bool {
	function, is := r.functions[name]
	if !is {
		return false
	}
	if known, is := r.declares[name]; is {
		return known
	}
	r.declares[name] = false // of a recursion
	ast.Inspect(function.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			r.declares[name] = r.declares[name] || r.declaresSpecs(method(n))
		case *ast.Ident:
			r.declares[name] = r.declares[name] || slices.Contains(subjects, n.Name) || r.declaresSpecs(n.Name)
		}
		return !r.declares[name]
	})
	return r.declares[name]
}

// method returns a dot and the name of the method or of the function of another package that is called.
func method(call *ast.CallExpr) string {
	if selector, is := call.Fun.(*ast.SelectorExpr); is {
		return "." + selector.Sel.Name
	}
	return ""
}

// mentions reports whether a node has one of the identifiers.
func mentions(n ast.Node, names []string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		name, is := n.(*ast.Ident)
		found = found || is && slices.Contains(names, name.Name)
		return !found
	})
	return found
}

// walk adds the specs below a node that is in the container outer.
func (r *reader) walk(n ast.Node, outer Spec) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr: // its name is a field, a method or a function of another package
			r.walk(n.X, outer)
			return false
		case *ast.Ident:
			r.enter(n.Name, outer)
		case *ast.CallExpr:
			name, is := n.Fun.(*ast.Ident)
			switch {
			case is && slices.Contains(subjects, name.Name):
				spec := r.node(n, outer)
				spec.Line = r.files.Position(n.Pos()).Line
				r.specs = append(r.specs, spec)
				return false
			case is && slices.Contains(containers, name.Name):
				for _, arg := range n.Args {
					r.walk(arg, r.node(n, outer))
				}
				return false
			}
			r.enter(method(n), outer)
		}
		return true
	})
}

// enter adds the specs of a function, if it declares any.
func (r *reader) enter(name string, outer Spec) {
	if r.declaresSpecs(name) {
		r.reached[name] = true
		body := r.functions[name].Body
		r.walk(body, outer.in(r.file(body)))
	}
}

func (s Spec) in(file string) Spec {
	if !slices.Contains(s.Files, file) {
		s.Files = append(slices.Clone(s.Files), file)
	}
	return s
}

// node returns a container or a spec in the container outer, by the arguments of its declaration.
func (r *reader) node(call *ast.CallExpr, outer Spec) Spec {
	s := outer.in(r.file(call))
	if len(call.Args) > 0 {
		if text, known := r.text(call.Args[0]); known {
			s.Text = strings.TrimSpace(s.Text + " " + text)
		}
	}
	s.Labels = slices.Clone(s.Labels)
	for _, arg := range call.Args {
		s.Labels = append(s.Labels, r.labels(arg)...)
	}
	return s
}

// labels returns the labels that an argument of a declaration adds: a call of Label, or of a function of the suite that returns Labels. In the latter,
// labels that follow from arguments are left out.
func (r *reader) labels(arg ast.Expr) []string {
	call, is := arg.(*ast.CallExpr)
	if !is {
		return nil
	}
	name, is := call.Fun.(*ast.Ident)
	if !is {
		return nil
	}
	var labels []string
	if name.Name == "Label" {
		for _, value := range call.Args {
			text, known := r.text(value)
			if !known && r.err == nil {
				r.err = fmt.Errorf("%s: a label is not a constant", r.files.Position(value.Pos()))
			}
			labels = append(labels, text)
		}
		return labels
	}
	function, is := r.functions[name.Name]
	if !is || !returnsLabels(function) {
		return nil
	}
	ast.Inspect(function.Body, func(n ast.Node) bool {
		if call, is := n.(*ast.CallExpr); is {
			if name, is := call.Fun.(*ast.Ident); is && name.Name == "Label" {
				for _, value := range call.Args {
					if text, known := r.text(value); known {
						labels = append(labels, text)
					}
				}
			}
		}
		return true
	})
	return labels
}

func returnsLabels(function *ast.FuncDecl) bool {
	results := function.Type.Results
	if results == nil || len(results.List) != 1 {
		return false
	}
	name, is := results.List[0].Type.(*ast.Ident)
	return is && name.Name == "Labels"
}
