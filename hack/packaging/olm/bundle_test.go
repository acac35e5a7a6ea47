// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package olm

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	interfaces "github.com/operator-framework/api/pkg/validation/interfaces"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/hack/packaging/render"
)

var (
	root   = filepath.Join("..", "..", "..")
	config = filepath.Join(root, "config")
)

// write makes a bundle and returns its directory.
func write(t *testing.T, o Options) string {
	t.Helper()
	o.Config = config
	dir := t.TempDir()
	if err := Write(o, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func load(t *testing.T, dir string) *manifests.Bundle {
	t.Helper()
	bundle, err := manifests.GetBundleFromDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return bundle
}

// TestTheBundleIsUpToDate compares the directory bundle with config.
func TestTheBundleIsUpToDate(t *testing.T) {
	csv := load(t, filepath.Join(root, "bundle")).CSV
	fresh := write(t, Options{Version: csv.Spec.Version.String(), Image: csv.Annotations["containerImage"]})
	read := func(dir string) map[string]string {
		files := map[string]string{}
		err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			name, _ := filepath.Rel(dir, path)
			files[name] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	if diff := cmp.Diff(read(filepath.Join(root, "bundle")), read(fresh)); diff != "" {
		t.Errorf("bundle is not made from this config: run `make bundle`\n%s", diff)
	}
}

// accepted are warnings that are not about Kiln's bundle: validators that are deprecated, the right to create PodDisruptionBudgets, and rules of RBAC
// for resources of which old versions were removed, although a rule names no version.
var accepted = regexp.MustCompile(`validator is deprecated|RBAC includes permission to create/update poddisruptionbudgets|` +
	`removed in v1\.25\..* Migrate the API\(s\) for (endpointslices|events|poddisruptionbudgets): \(\["ClusterServiceVersion\.Spec\.InstallStrategy`)

// TestValidators runs all validators of operator-framework/api, also those that are no defaults, on the bundle. The only one left out,
// MultipleArchitecturesValidator, pulls images.
func TestValidators(t *testing.T) {
	bundle := load(t, write(t, Options{
		Version: "v0.1.0", Image: "registry.example.com/kiln@sha256:" + strings.Repeat("0", 64), Replaces: "v0.0.9",
	}))
	for name, v := range map[string]interfaces.Validator{
		"ClusterServiceVersion": validation.ClusterServiceVersionValidator, "CustomResourceDefinition": validation.CustomResourceDefinitionValidator,
		"OperatorHub": validation.OperatorHubValidator, //nolint:staticcheck // deprecated, but catalogs still run it
		"Bundle":      validation.BundleValidator, "OperatorHubV2": validation.OperatorHubV2Validator,
		"StandardCapabilities": validation.StandardCapabilitiesValidator, "StandardCategories": validation.StandardCategoriesValidator,
		"Object": validation.ObjectValidator, "OperatorGroup": validation.OperatorGroupValidator, "Community": validation.CommunityOperatorValidator,
		"AlphaDeprecatedAPIs": validation.AlphaDeprecatedAPIsValidator, "GoodPractices": validation.GoodPracticesValidator,
		"PackageManifest": validation.PackageManifestValidator,
	} {
		t.Run(name, func(t *testing.T) {
			for _, result := range v.Validate(bundle.ObjectsToValidate()...) {
				for _, e := range result.Errors {
					t.Errorf("%s: %v", result.Name, e)
				}
				for _, w := range result.Warnings {
					if !accepted.MatchString(w.Error()) && !withoutExample(w.Error()) {
						t.Errorf("%s: %v", result.Name, w)
					}
				}
			}
		})
	}
}

// withoutExample returns whether a warning is about the missing example of a kind without a controller.
func withoutExample(warning string) bool {
	return strings.Contains(warning, "provided API should have an example annotation") &&
		slices.ContainsFunc(v1.UnimplementedKinds, func(k *v1.Kind) bool {
			return regexp.MustCompile(`Kind=` + k.Kind + `\b`).MatchString(warning)
		})
}

// TestPathsOfDescriptorsExist compares the descriptors of the OVNCluster with its schema.
func TestPathsOfDescriptorsExist(t *testing.T) {
	bundle, found := load(t, filepath.Join(root, "bundle")), 0
	for _, owned := range bundle.CSV.Spec.CustomResourceDefinitions.Owned {
		for _, crd := range bundle.V1CRDs {
			if crd.Name != owned.Name {
				continue
			}
			var paths []string
			for _, d := range owned.SpecDescriptors {
				paths = append(paths, "spec."+d.Path)
			}
			for _, d := range owned.StatusDescriptors {
				paths = append(paths, "status."+d.Path)
			}
			for _, path := range paths {
				found++
				s := *crd.Spec.Versions[0].Schema.OpenAPIV3Schema
				for element := range strings.SplitSeq(path, ".") {
					next, exists := s.Properties[element]
					if !exists {
						t.Errorf("%s has no field %s", crd.Name, path)
					}
					s = next
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("the bundle has %d descriptors: this proves little", found)
	}
}

// TestTheBundleGrantsTheRightsOfTheManifests compares the operator's rights in a bundle with those in config/default.
func TestTheBundleGrantsTheRightsOfTheManifests(t *testing.T) {
	objects, err := render.Objects(filepath.Join(config, "default"), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []Target{{Namespace: "kiln-system"}, {Namespace: "kiln-system", AllNamespaces: true}} {
		installed, err := Objects(load(t, filepath.Join(root, "bundle")), target)
		if err != nil {
			t.Fatal(err)
		}
		cluster, namespaced := rules(t, objects, "ClusterRole", operatorName), rules(t, objects, "Role", operatorName)
		if target.AllNamespaces {
			cluster, namespaced = append(cluster, namespaced...), nil
		}
		slices.Sort(cluster)
		if diff := cmp.Diff(cluster, rules(t, installed, "ClusterRole", Package+".v")); diff != "" {
			t.Errorf("rights in all namespaces, for %+v:\n%s", target, diff)
		}
		if diff := cmp.Diff(namespaced, rules(t, installed, "Role", Package+".v")); diff != "" {
			t.Errorf("rights in the namespace, for %+v:\n%s", target, diff)
		}
	}
}

// rules returns the rules of roles with a prefix, as sorted texts.
func rules(t *testing.T, objects []*unstructured.Unstructured, kind, prefix string) (texts []string) {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() != kind || !strings.HasPrefix(o.GetName(), prefix) {
			continue
		}
		var role rbacv1.ClusterRole
		if err := convert(o.Object, &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			text, err := yaml.Marshal(rule)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(text))
		}
	}
	slices.Sort(texts)
	return texts
}
