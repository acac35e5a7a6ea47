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
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
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

// requestValues are valid and invalid values of each request of a pod.
var requestValues = map[Annotation]struct{ valid, invalid []string }{
	AnnotationIPAddress: {[]string{"10.16.0.9,fd00::9", "10.16.0.9"}, []string{"10.16.0.9,", "10.16.0.9,10.16.0.8", "0.0.0.0/0", "a"}},
	AnnotationMACAddress: {
		[]string{"02:00:00:00:00:01", "02-00-00-00-00-01"},
		[]string{"02:00", "00:00:00:00:00:00", "02:00:00:00:00:00:00:01", "01:00:5e:00:00:01"},
	},
	AnnotationLogicalSwitch: {[]string{"web", "a.b-c"}, []string{"a/b", "../a", "a,b", `"`, "Web", strings.Repeat("x", 254)}},
	AnnotationIPFamily:      {[]string{"ipv4", "IPv6", "dual"}, []string{"6"}},
	AnnotationIPPool: {
		[]string{"a,b", "10.16.0.2,10.16.0.3", "10.16.0.2,fd00::2;10.16.0.3,fd00::3"},
		[]string{"a,10.16.0.2", "10.16.0.2..10.16.0.9", "a;b", "A", `"`},
	},
	AnnotationVip: {[]string{"front"}, []string{"a,b", "A", "a b", "a/b"}},
	AnnotationRoutes: {
		[]string{`[{"dst":"10.0.0.0/8","gw":"10.16.0.2"}]`, "[\n\t{\"gw\":\"fd00::1\"}\n]", "[]"},
		[]string{"10.0.0.0/8", `[{"dst":"10.0.0.0/33"}]`, `[{"dst":"10.0.0.0/8","gw":"fd00::1"}]`, "[{}]", "[null]", "{", `[{"dst":"0.0.0.0/0","gw":"\u0000"}]`},
	},
	AnnotationDefaultRoute:  {[]string{"true", "false"}, []string{"no"}},
	AnnotationNorthGateway:  {[]string{"10.16.0.2,fd00::2"}, []string{"10.16.0.2,10.16.0.3", "gateway"}},
	AnnotationPortVips:      {[]string{"10.16.0.7, 10.16.0.8", "10.16.0.7,10.16.0.7"}, []string{"10.16.0.7,", "10.16.0.0/24"}},
	AnnotationPortSecurity:  {[]string{"true", "false"}, []string{"yes", "True"}},
	AnnotationLayer2Forward: {[]string{"true", "false"}, []string{"1"}},
	AnnotationAAPs:          {[]string{"a, b,,a", "a"}, []string{"a,B", `"`}},
	AnnotationGroups:        {[]string{"b,a,,a", "a"}, []string{"a,b c", "-1"}},
	AnnotationDHCPv4:        {[]string{"lease_time=600,router=10.16.0.1"}, nil}, // tests of internal/validation have more values
	AnnotationDHCPv6:        {[]string{"dns_server=fd00::a"}, nil},
	AnnotationMachine:       {[]string{"vm"}, nil},
}

// Each request of a pod accepts only its valid values, no long text and no control characters.
func TestRequestsAreChecked(t *testing.T) {
	tooMuch := []string{"a\x00b", "a\x1b[2Jb", "a\u0085\u009bb", strings.Repeat("x", maxRequest+1), strings.Repeat("10.0.0.1,", maxRequest/9+1) + "10.0.0.1"}
	for _, e := range annotationTable {
		if e.on != OnPod || e.role == RoleResult {
			continue
		}
		values := requestValues[e.name]
		if len(values.valid) == 0 || len(values.invalid) == 0 && (e.parse != nil || e.check != nil) {
			t.Errorf("%s has no values to test with", e.name)
		}
		read := func(value string) error {
			var request PodRequest
			return e.read(map[string]string{e.name.Key(): value}, ProviderOVN, &request)
		}
		for _, value := range append(values.valid, "", " ") {
			if err := read(value); err != nil {
				t.Errorf("%v", err)
			}
		}
		for _, value := range append(values.invalid, tooMuch...) {
			var unreadable *AnnotationError
			if err := read(value); !errors.As(err, &unreadable) || unreadable.Key != e.name.Key() || strings.ContainsAny(err.Error(), "\x00\x1b\u009b") {
				t.Errorf("%s=%.40q: %q", e.name, value, err)
			}
			checked := CheckRequests(OnPod, map[string]string{e.name.Key(): value})
			if got, want := len(checked), map[bool]int{true: 1}[e.role == RoleRequest]; got != want {
				t.Errorf("%s=%.40q has %d errors, want %d", e.name, value, got, want)
			}
			if _, err := ParsePodRequest(map[string]string{e.name.Key(): value}); (err != nil) != (e.parse != nil) {
				t.Errorf("of a new pod with %s=%.40q: %v", e.name, value, err)
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
