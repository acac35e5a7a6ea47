// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package olm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/operator-framework/api/pkg/apis/scorecard/v1alpha3"
	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestScorecard does what the tests of the scorecard's configuration check, which run in a cluster and need its image.
func TestScorecard(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "bundle", "tests", "scorecard", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config v1alpha3.Configuration
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		t.Fatal(err)
	}
	bundle := load(t, filepath.Join(root, "bundle"))
	var examples []unstructured.Unstructured
	if err := json.Unmarshal([]byte(bundle.CSV.Annotations["alm-examples"]), &examples); err != nil || len(examples) < 8 {
		t.Fatalf("the bundle has %d examples: %v", len(examples), err)
	}
	checks := map[string]func(*testing.T, *manifests.Bundle, *unstructured.Unstructured){
		"basic-check-spec": checkSpec, "olm-crds-have-validation": checkValidation, "olm-spec-descriptors": checkDescriptors,
		"olm-status-descriptors": checkNoStatus, "olm-bundle-validation": nil,
	}
	for _, stage := range config.Stages {
		for _, test := range stage.Tests {
			name := test.Entrypoint[len(test.Entrypoint)-1]
			check, known := checks[name]
			if !known || len(test.Entrypoint) != 2 || test.Labels["test"] != name+"-test" || test.Image != stage.Tests[0].Image {
				t.Errorf("the scorecard's configuration has the test %+v", test)
				continue
			}
			t.Run(name, func(t *testing.T) {
				if check == nil {
					for _, result := range validation.DefaultBundleValidators.Validate(bundle.ObjectsToValidate()...) {
						for _, e := range result.Errors {
							t.Error(e)
						}
					}
				}
				for i := range examples {
					if check != nil {
						check(t, bundle, &examples[i])
					}
				}
			})
		}
	}
}

func checkSpec(t *testing.T, _ *manifests.Bundle, example *unstructured.Unstructured) {
	t.Helper()
	if _, found, err := unstructured.NestedMap(example.Object, "spec"); !found || err != nil {
		t.Errorf("the example of %s has no spec: %v", example.GetKind(), err)
	}
}

// fields returns the names of the fields in an example's spec.
func fields(example *unstructured.Unstructured) (names []string) {
	spec, _, _ := unstructured.NestedMap(example.Object, "spec")
	for name := range spec {
		names = append(names, name)
	}
	return names
}

func checkValidation(t *testing.T, bundle *manifests.Bundle, example *unstructured.Unstructured) {
	t.Helper()
	for _, crd := range bundle.V1CRDs {
		if crd.Spec.Names.Kind != example.GetKind() {
			continue
		}
		for _, name := range fields(example) {
			if _, found := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties[name]; !found {
				t.Errorf("the definition of %s has no field %s", example.GetKind(), name)
			}
		}
	}
}

func checkDescriptors(t *testing.T, bundle *manifests.Bundle, example *unstructured.Unstructured) {
	t.Helper()
	at := slices.IndexFunc(bundle.CSV.Spec.CustomResourceDefinitions.Owned, func(d v1alpha1.CRDDescription) bool { return d.Kind == example.GetKind() })
	if at < 0 {
		t.Fatalf("the bundle does not own %s", example.GetKind())
	}
	for _, name := range fields(example) {
		described := slices.ContainsFunc(bundle.CSV.Spec.CustomResourceDefinitions.Owned[at].SpecDescriptors, func(d v1alpha1.SpecDescriptor) bool {
			return d.Path == name
		})
		if !described {
			t.Errorf("the field %s of %s has no descriptor", name, example.GetKind())
		}
	}
}

func checkNoStatus(t *testing.T, _ *manifests.Bundle, example *unstructured.Unstructured) {
	t.Helper()
	if _, found := example.Object["status"]; found {
		t.Errorf("the example of %s has a status, so its definition needs descriptors of it", example.GetKind())
	}
}
