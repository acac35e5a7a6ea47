// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// guides are the pages that describe the fields of each kind that users write.
var guides = map[string][]string{
	"subnets":           {"subnets", "gateways", "services", "vpcs", "underlay"},
	"vpcs":              {"vpcs"},
	"ippools":           {"addresses"},
	"vips":              {"addresses"},
	"ovn-eips":          {"addresses"},
	"security-groups":   {"policy"},
	"switch-lb-rules":   {"services"},
	"router-lb-rules":   {"services"},
	"provider-networks": {"underlay"},
	"vlans":             {"underlay"},
}

// withoutEffect is in the comments of fields that this version accepts only.
var withoutEffect = regexp.MustCompile(`This version\s+ignores|has no effect|this version does not have`)

// TestFieldsAreDocumented checks that a guide names each field of these kinds that has an effect, and that docs/reference/api.md has those of
// Subnets.
func TestFieldsAreDocumented(t *testing.T) {
	all := pages(t)
	_, ofSubnets, _ := strings.Cut(all["docs/reference/api.md"], "\n### Subnet\n")
	ofSubnets, _, _ = strings.Cut(ofSubnets, "\n### ")
	for resource, names := range guides {
		kind, spec := specOf(t, "kubeovn.io_"+resource+".yaml")
		var text string
		for _, name := range names {
			text += all["docs/user/"+name+".md"]
		}
		for _, field := range slices.Sorted(maps.Keys(spec.Properties)) {
			ignored := slices.ContainsFunc(kubeovnv1.UnimplementedFields, func(f kubeovnv1.UnimplementedField) bool { return f.Kind == kind && f.Field == field })
			if ignored || withoutEffect.MatchString(spec.Properties[field].Description) {
				continue
			}
			word := regexp.MustCompile(`\b` + field + `\b`)
			if !word.MatchString(text) {
				t.Errorf("docs/user/%s.md: %s of %s is missing", strings.Join(names, ".md, "), field, kind)
			}
			if resource == "subnets" && !word.MatchString(ofSubnets) {
				t.Errorf("docs/reference/api.md: the table of Subnets lacks %s", field)
			}
		}
	}
}

// specOf returns the kind of a resource definition, and the schema of its spec.
func specOf(t *testing.T, file string) (string, schema) {
	t.Helper()
	var crd struct {
		Spec struct {
			Names    struct{ Kind string }
			Versions []struct {
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	read(t, filepath.Join(root, "config/crd/bases", file), &crd)
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	if len(spec.Properties) == 0 {
		t.Fatalf("%s has no fields", file)
	}
	return crd.Spec.Names.Kind, spec
}
