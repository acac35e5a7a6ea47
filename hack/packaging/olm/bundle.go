// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package olm makes from config/ the bundle and the catalog for the Operator Lifecycle Manager (OLM), and returns the objects that OLM creates from a
// bundle.
package olm

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/hack/packaging/render"
)

const (
	// Package is the name of the operator in catalogs.
	Package = "kiln"
	// Channel is the only channel. Versions before 1.0.0 are candidates.
	Channel = "candidate"

	operatorName = "kiln-operator"
)

// Options describe one version of the bundle.
type Options struct {
	// Config is the directory config.
	Config string
	// Version is a semantic version, with or without a leading v.
	Version string
	// Image is the image of the operator and of all components, for a release by its digest.
	Image string
	// Replaces is the earlier version that this version is an upgrade of, or empty.
	Replaces string
	// Created is the time of the version in RFC 3339, or empty for that of the base in config/manifests.
	Created string
}

// Name returns the name of the ClusterServiceVersion of a version.
func Name(semver string) string { return Package + ".v" + strings.TrimPrefix(semver, "v") }

// Bundle returns the files of a bundle by their paths.
func Bundle(o Options) (map[string][]byte, error) {
	objects, err := render.Objects(filepath.Join(o.Config, "default"), o.Image)
	if err != nil {
		return nil, err
	}
	csv, err := base(o)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"Dockerfile": []byte(dockerfile)}
	var problems []error
	for _, object := range objects {
		file, err := place(csv, object)
		if err == nil && file != "" {
			files["manifests/"+file], err = yaml.Marshal(object.Object)
		}
		problems = append(problems, err)
	}
	problems = append(problems, finish(csv, o))
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	if files["manifests/kiln.clusterserviceversion.yaml"], err = encode(csv); err != nil {
		return nil, err
	}
	if files["metadata/annotations.yaml"], err = yaml.Marshal(map[string]any{"annotations": annotations()}); err != nil {
		return nil, fmt.Errorf("encode the annotations: %w", err)
	}
	if files["tests/scorecard/config.yaml"], err = os.ReadFile(filepath.Join(o.Config, "scorecard", "config.yaml")); err != nil {
		return nil, fmt.Errorf("read the configuration of scorecard: %w", err)
	}
	return files, nil
}

// base returns the ClusterServiceVersion of config/manifests.
func base(o Options) (*v1alpha1.ClusterServiceVersion, error) {
	text, err := os.ReadFile(filepath.Join(o.Config, "manifests", "kiln.clusterserviceversion.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the base of the ClusterServiceVersion: %w", err)
	}
	csv := &v1alpha1.ClusterServiceVersion{}
	if err := yaml.UnmarshalStrict(text, csv); err != nil {
		return nil, fmt.Errorf("decode the base of the ClusterServiceVersion: %w", err)
	}
	return csv, nil
}

// place adds an object of config/default to the ClusterServiceVersion. For an object that OLM applies as it is, it returns a file name.
func place(csv *v1alpha1.ClusterServiceVersion, object *unstructured.Unstructured) (string, error) {
	strategy := &csv.Spec.InstallStrategy.StrategySpec
	switch kind := object.GetKind(); kind {
	case "CustomResourceDefinition":
		plural, group := split(object.GetName())
		return group + "_" + plural + ".yaml", describe(csv, object)
	case "Deployment":
		deployment := v1alpha1.StrategyDeploymentSpec{Name: object.GetName(), Label: object.GetLabels()}
		spec, _, err := unstructured.NestedMap(object.Object, "spec")
		if err != nil {
			return "", fmt.Errorf("%s %s: %w", kind, object.GetName(), err)
		}
		strategy.DeploymentSpecs = append(strategy.DeploymentSpecs, deployment)
		return "", convert(spec, &strategy.DeploymentSpecs[len(strategy.DeploymentSpecs)-1].Spec)
	case "ClusterRole":
		if !strings.HasPrefix(object.GetName(), operatorName) {
			return object.GetName() + ".clusterrole.yaml", nil // a role for users
		}
		return "", grant(&strategy.ClusterPermissions, object)
	case "Role":
		return "", grant(&strategy.Permissions, object)
	case "ServiceAccount", "ClusterRoleBinding", "RoleBinding": // OLM creates them from the permissions
		return "", nil
	case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding": // config/admission, which users apply
		return "", nil
	default:
		return "", fmt.Errorf("config/default has a %s, which hack/packaging cannot put into a bundle", kind)
	}
}

// split returns the plural and the group of a definition's name.
func split(definition string) (plural, group string) {
	plural, group, _ = strings.Cut(definition, ".")
	return plural, group
}

// grant adds the rules of a role to the permissions of the operator's ServiceAccount.
func grant(permissions *[]v1alpha1.StrategyDeploymentPermissions, object *unstructured.Unstructured) error {
	var role rbacv1.ClusterRole // a Role has the same rules
	if err := convert(object.Object, &role); err != nil {
		return err
	}
	if len(*permissions) == 0 {
		*permissions = []v1alpha1.StrategyDeploymentPermissions{{ServiceAccountName: operatorName}}
	}
	(*permissions)[0].Rules = append((*permissions)[0].Rules, role.Rules...)
	return nil
}

// describe adds a definition to those that the operator owns. The base may have its descriptors.
func describe(csv *v1alpha1.ClusterServiceVersion, object *unstructured.Unstructured) error {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := convert(object.Object, &crd); err != nil {
		return err
	}
	owned := &csv.Spec.CustomResourceDefinitions.Owned
	at := -1
	for i := range *owned {
		if (*owned)[i].Name == crd.Name {
			at = i
		}
	}
	if at < 0 {
		*owned = append(*owned, v1alpha1.CRDDescription{Name: crd.Name, Kind: crd.Spec.Names.Kind})
		at = len(*owned) - 1
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if !v.Storage {
			continue
		}
		(*owned)[at].Version = v.Name
		(*owned)[at].DisplayName = crd.Spec.Names.Kind
		(*owned)[at].Description = summary(crd.Spec.Names.Kind, v.Schema.OpenAPIV3Schema.Description)
		if len((*owned)[at].SpecDescriptors) == 0 && !unimplemented(crd.Spec.Names.Kind) {
			(*owned)[at].SpecDescriptors = descriptors(v.Schema.OpenAPIV3Schema.Properties["spec"].Properties)
		}
	}
	return nil
}

// descriptors returns a descriptor of each field of a spec.
func descriptors(fields map[string]apiextensionsv1.JSONSchemaProps) []v1alpha1.SpecDescriptor {
	out := make([]v1alpha1.SpecDescriptor, 0, len(fields))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		out = append(out, v1alpha1.SpecDescriptor{Path: name, DisplayName: name, Description: firstSentence(fields[name].Description)})
	}
	return out
}

// convert converts an unstructured object into a typed one.
func convert(content map[string]any, into any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, into); err != nil {
		return fmt.Errorf("decode %T: %w", into, err)
	}
	return nil
}

// finish sets the fields of a version.
func finish(csv *v1alpha1.ClusterServiceVersion, o Options) error {
	csv.Name = Name(o.Version)
	if err := (&csv.Spec.Version).UnmarshalJSON([]byte(`"` + strings.TrimPrefix(o.Version, "v") + `"`)); err != nil {
		return fmt.Errorf("version %s: %w", o.Version, err)
	}
	if o.Replaces != "" {
		csv.Spec.Replaces = Name(o.Replaces)
	}
	if o.Created != "" {
		csv.Annotations["createdAt"] = o.Created
	}
	csv.Annotations["containerImage"] = o.Image
	csv.Spec.RelatedImages = []v1alpha1.RelatedImage{{Name: Package, Image: o.Image}}
	icon, err := os.ReadFile(filepath.Join(o.Config, "manifests", "icon.svg"))
	if err != nil {
		return fmt.Errorf("read the icon: %w", err)
	}
	csv.Spec.Icon = []v1alpha1.Icon{iconOf(icon)}
	csv.Annotations["alm-examples"], err = examples(o.Config, csv)
	return err
}
