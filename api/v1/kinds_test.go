// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/internal/testing/golden"
)

const root = "../.."

// withoutController is the second sentence in the comment of the type of an unimplemented kind.
const withoutController = ". This version of Kiln has no controller for it: its condition Ready is False."

// definition is a part of a resource definition.
type definition struct {
	Spec struct {
		Names    struct{ Kind, Plural string }
		Scope    string
		Versions []struct {
			Name   string
			Schema struct {
				OpenAPIV3Schema struct {
					Description string
					Properties  struct {
						Status struct{ Properties map[string]any }
					}
				}
			}
		}
	}
}

// description returns the comment of the type.
func (d definition) description() string {
	return strings.Join(strings.Fields(d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description), " ")
}

// definitions returns the definitions of kubeovn.io/v1 by kind. controller-gen makes them from the types.
func definitions(t *testing.T) map[string]definition {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]definition{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d definition
		if err := yaml.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if d.Spec.Versions[0].Name == GroupVersion.Version {
			all[d.Spec.Names.Kind] = d
		}
	}
	return all
}

// TestKindsHaveEveryDefinition compares Kinds with the definitions.
func TestKindsHaveEveryDefinition(t *testing.T) {
	all := definitions(t)
	for _, k := range Kinds {
		d, exists := all[k.Kind]
		if !exists {
			t.Errorf("config/crd/bases lacks %s", k.Kind)
			continue
		}
		delete(all, k.Kind)
		_, ready := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties.Status.Properties["ready"]
		want := Kind{
			Resource: d.Spec.Names.Plural, Namespaced: d.Spec.Scope == "Namespaced", StatusReady: ready,
			Implemented: !strings.HasSuffix(d.description(), withoutController),
		}
		got := Kind{Resource: k.Resource, Namespaced: k.Namespaced, StatusReady: k.StatusReady, Implemented: k.Implemented}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v, the definition has %+v", k.Kind, got, want)
		}
	}
	for kind := range all {
		t.Errorf("Kinds lacks %s", kind)
	}
}

// TestKindsHaveTheirTypes checks the types of the table by the names under which the scheme knows them, and ConditionsOf.
func TestKindsHaveTheirTypes(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, k := range Kinds {
		for name, object := range map[string]runtime.Object{k.Kind: k.Object, k.Kind + "List": k.List} {
			if known, _, err := scheme.ObjectKinds(object); err != nil || known[0] != GroupVersion.WithKind(name) {
				t.Errorf("the scheme has %v for %s: %v", known, name, err)
			}
		}
		object := k.Object.DeepCopyObject()
		if err := json.Unmarshal([]byte(`{"status":{"conditions":[{"type":"Ready"}]}}`), object); err != nil {
			t.Fatal(err)
		}
		if len(ConditionsOf(object)) != 1 {
			t.Errorf("ConditionsOf lacks %s", k.Kind)
		}
	}
}

// TestFilesHaveEveryKind compares the lists of kinds, and their numbers, in YAML files and pages with Kinds. The flag -update writes them.
func TestFilesHaveEveryKind(t *testing.T) {
	var project, unimplemented string
	var resources []string
	ofKubeOVN, working := 0, 0
	all := definitions(t)
	for _, k := range Kinds {
		if !k.Own {
			ofKubeOVN++
			if k.Implemented {
				working++
			}
		}
		resources = append(resources, k.Resource)
		project += fmt.Sprintf("- api:\n    crdVersion: v1\n    namespaced: %t\n  controller: true\n  domain: kubeovn.io\n  kind: %s\n"+
			"  path: github.com/kiln-net/kiln/api/v1\n  version: v1\n", k.Namespaced, k.Kind)
		if !k.Implemented {
			purpose := strings.TrimSuffix(strings.TrimPrefix(all[k.Kind].description(), k.Kind+" "), withoutController)
			unimplemented += fmt.Sprintf("| %s | %s |\n", k.Kind, purpose)
		}
	}
	lines := func(format string, names ...string) (text string) {
		for _, name := range slices.Sorted(slices.Values(names)) {
			text += fmt.Sprintf(format, name)
		}
		return text
	}
	withCluster := append(slices.Clone(resources), "ovnclusters")
	work := fmt.Sprintf("%d of its %d kinds work", working, ofKubeOVN)
	none := fmt.Sprintf("%d kinds have [no controller yet]", len(UnimplementedKinds))
	for _, list := range []struct{ file, pattern, text string }{
		{"PROJECT", `(?:- api:\n(?: .*\n)* {2}path: .*/api/v1\n.*\n)+`, project},
		{"config/crd/kustomization.yaml", `(?:- bases/.*\n)+`, lines("- bases/kubeovn.io_%s.yaml\n", withCluster...)},
		{"config/rbac/user_roles.yaml", `(?s)(name: kiln-view\n.*?resources:\n)(?:  - [a-z-]+\n)+`, lines("  - %s\n", withCluster...)},
		{"config/rbac/user_roles.yaml", `(?s)(name: kiln-edit\n.*?- ovnclusters\n.*?resources:\n)(?:  - [a-z-]+\n)+`, lines("  - %s\n", resources...)},
		{"README.md", `\d+ of its \d+ kinds work`, work},
		{"README.md", `\d+ kinds have \[no controller yet\]`, none},
		{"docs/architecture.md", `\d+ of its \d+ kinds work`, work},
		{"docs/architecture.md", `\d+ kinds have \[no controller yet\]`, none},
		{"docs/reference/compatibility.md", `\d+ of the \d+ kinds`, fmt.Sprintf("%d of the %d kinds", len(UnimplementedKinds), ofKubeOVN)},
		{"docs/reference/compatibility.md", `(\| kind \| purpose \|\n\|---\|---\|\n)(?:\| .*\n)*`, unimplemented},
	} {
		path := filepath.Join(root, list.file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		pattern := regexp.MustCompile(list.pattern)
		if !pattern.Match(text) {
			t.Fatalf("%s has nothing like %s", list.file, list.pattern)
		}
		// A group before the list stays.
		golden.Compare(t, path, pattern.ReplaceAll(text, []byte("${1}"+list.text)))
	}
}
