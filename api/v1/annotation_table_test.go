// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"cmp"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/api/v1/requesttest"
)

// Each constant of type Annotation occurs in the table, there are no duplicate rows, and only requests have a parser.
func TestTheTableHasEachAnnotation(t *testing.T) {
	var declared, listed []Annotation
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				declared = append(declared, annotationsIn(t, spec)...)
			}
			return true
		})
	}
	for i, e := range annotationTable {
		listed = append(listed, e.name)
		if slices.ContainsFunc(annotationTable[:i], func(o annotationEntry) bool { return o.name == e.name && o.on == e.on }) {
			t.Errorf("%s of %s has two rows", e.name, e.on)
		}
		if e.role == RoleResult && (e.parse != nil || e.check != nil) || e.parse != nil && (e.check != nil || e.on != OnPod) || e.role == RoleClaim && e.on != OnPod {
			t.Errorf("%s of %s: role %q, parse %t, check %t", e.name, e.on, e.role, e.parse != nil, e.check != nil)
		}
	}
	slices.Sort(declared)
	slices.Sort(listed)
	if diff := gocmp.Diff(declared, slices.Compact(listed)); diff != "" {
		t.Errorf("the constants (-) and the table (+):\n%s", diff)
	}
}

// annotationsIn returns the values of a constant declaration of type Annotation. Among names with the prefix Annotation, only
// AnnotationDomain has another type.
func annotationsIn(t *testing.T, spec *ast.ValueSpec) (values []Annotation) {
	t.Helper()
	for i, name := range spec.Names {
		of, typed := spec.Type.(*ast.Ident)
		switch {
		case typed && of.Name == "Annotation" && i < len(spec.Values):
			value, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, Annotation(value))
		case strings.HasPrefix(name.Name, "Annotation") && name.Name != "AnnotationDomain":
			t.Errorf("constant %s is not of type Annotation", name)
		}
	}
	return values
}

// The table of annotations in the documentation has the same rows.
func TestTheTableIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text2, found := strings.Cut(string(text), "| name | on | role | value |\n")
	if !found {
		t.Fatal("there is no table of annotations")
	}
	type row struct{ Name, On, Role string }
	var documented, want []row
	for line := range strings.Lines(text2) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) < 4 {
			break
		}
		for name := range strings.SplitSeq(cells[0], ",") {
			for on := range strings.SplitSeq(cells[1], ",") {
				documented = append(documented, row{strings.TrimSpace(name), strings.TrimSpace(on), strings.TrimSpace(cells[2])})
			}
		}
	}
	documented = documented[1:] // the line below the names of the columns
	for _, e := range annotationTable {
		want = append(want, row{string(e.name), e.on, string(e.role)})
	}
	order := func(a, b row) int {
		return cmp.Or(cmp.Compare(a.On, b.On), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Role, b.Role))
	}
	slices.SortFunc(documented, order)
	slices.SortFunc(want, order)
	if diff := gocmp.Diff(want, documented); diff != "" {
		t.Errorf("the table (-) and docs/reference/api.md (+):\n%s", diff)
	}
}

// Each request of a pod accepts only its valid values, no long text and no control characters.
func TestRequestsAreChecked(t *testing.T) {
	all, tooMuch := requesttest.OfPods(), requesttest.TooMuch(maxRequest)
	for _, e := range annotationTable {
		if e.on != OnPod || e.role == RoleResult {
			continue
		}
		values := all[string(e.name)]
		if len(values.Valid) == 0 || len(values.Invalid) == 0 && (e.parse != nil || e.check != nil) {
			t.Errorf("%s has no values to test with", e.name)
		}
		read := func(value string) error {
			var request PodRequest
			return e.read(map[string]string{e.name.Key(): value}, ProviderOVN, &request)
		}
		for _, value := range append(values.Valid, "", " ") {
			if err := read(value); err != nil {
				t.Errorf("%v", err)
			}
		}
		for _, value := range append(values.Invalid, tooMuch...) {
			var unreadable *AnnotationError
			if err := read(value); !errors.As(err, &unreadable) || unreadable.Key != e.name.Key() || strings.ContainsAny(err.Error(), "\x00\x1b\u009b") {
				t.Errorf("%s=%.40q: %q", e.name, value, err)
			}
			checked := CheckRequests(OnPod, map[string]string{e.name.Key(): value})
			if got, want := len(checked), map[bool]int{true: 1}[e.role == RoleRequest]; got != want {
				t.Errorf("%s=%.40q has %d errors, want %d", e.name, value, got, want)
			}
			request, err := ParsePodRequest(map[string]string{e.name.Key(): value})
			if (err != nil) != (e.parse != nil) || !reflect.DeepEqual(request, PodRequest{Provider: ProviderOVN}) {
				t.Errorf("of a new pod with %s=%.40q: %v, and %+v", e.name, value, err, request)
			}
		}
	}
}

func TestRequestsOfServicesAreNames(t *testing.T) {
	for value, valid := range map[string]bool{"": true, "blue": true, "a/b": false, "..": false, "a\x00b": false} {
		if err := CheckRequests(OnService, map[string]string{AnnotationLogicalRouter.Key(): value}); (len(err) == 0) != valid {
			t.Errorf("%q: %v", value, err)
		}
	}
}
