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

// guides are the links from docs/reference/api.md to pages that describe the fields of a kind.
var guides = regexp.MustCompile(`\.\./(user/[a-z]+\.md)`)

// withoutEffect is in the comments of fields that this version accepts only.
var withoutEffect = regexp.MustCompile(`This version\s+ignores|has no effect|this version does not have`)

// TestFieldsAreDocumented checks that a guide names each field of the kinds with a controller that has an effect, and that docs/reference/api.md has
// those of Subnets. The guides are the links in the row and in the section of the kind there. IPs are exempt: Kiln writes them.
func TestFieldsAreDocumented(t *testing.T) {
	all := pages(t)
	reference := all["docs/reference/api.md"]
	for _, k := range kubeovnv1.ImplementedKinds {
		if k.Kind == "IP" {
			continue
		}
		_, row, _ := strings.Cut(reference, "\n| "+k.Kind+" |")
		row, _, _ = strings.Cut(row, "\n")
		_, section, _ := strings.Cut(reference, "\n### "+k.Kind+"\n")
		section, _, _ = strings.Cut(section, "\n### ")
		var text string
		for _, link := range guides.FindAllStringSubmatch(row+section, -1) {
			text += all["docs/"+link[1]]
		}
		spec := specOf(t, "kubeovn.io_"+k.Resource+".yaml")
		for _, field := range slices.Sorted(maps.Keys(spec.Properties)) {
			ignored := slices.ContainsFunc(kubeovnv1.UnimplementedFields, func(f kubeovnv1.UnimplementedField) bool { return f.Kind == k.Kind && f.Field == field })
			if ignored || withoutEffect.MatchString(spec.Properties[field].Description) {
				continue
			}
			word := regexp.MustCompile(`\b` + field + `\b`)
			if !word.MatchString(text) {
				t.Errorf("the guides of %s, to which docs/reference/api.md links, lack %s", k.Kind, field)
			}
			if k.Kind == "Subnet" && !word.MatchString(section) {
				t.Errorf("docs/reference/api.md: the table of Subnets lacks %s", field)
			}
		}
	}
}

// specOf returns the schema of the spec of a resource definition.
func specOf(t *testing.T, file string) schema {
	t.Helper()
	var crd struct {
		Spec struct {
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
	return spec
}
