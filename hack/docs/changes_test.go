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
)

const changesPage = "docs/operations/changes.md"

// schema is the part of a resource definition's schema that the test reads.
type schema struct {
	Description string            `json:"description"`
	Properties  map[string]schema `json:"properties"`
	Validations []struct {
		Rule      string `json:"rule"`
		FieldPath string `json:"fieldPath"`
	} `json:"x-kubernetes-validations"`
}

// TestChangesOfEveryFieldAreDocumented checks that each field of an OVNCluster's spec has a row in the table of changesPage, and that the fields
// of rows with "refused" are those with a transition rule.
func TestChangesOfEveryFieldAreDocumented(t *testing.T) {
	var definition struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	read(t, filepath.Join(root, "config", "crd", "bases", "kubeovn.io_ovnclusters.yaml"), &definition)
	cluster := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	fields := map[string]bool{}
	addFields(fields, "", cluster.Properties["spec"])
	if len(fields) < 40 {
		t.Errorf("the spec has %d fields: this proves little", len(fields))
	}

	rows := documentedChanges(t)
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if rows[field] == "" {
			t.Errorf("the table of %s has no row for %s: add one that says how a change is applied (live, rollout or refused) and what it interrupts", changesPage, field)
		}
	}
	refused := map[string]bool{}
	for _, rule := range cluster.Validations {
		if strings.Contains(rule.Rule, "oldSelf") {
			refused[strings.TrimPrefix(rule.FieldPath, ".spec.")] = true
		}
	}
	for _, field := range slices.Sorted(maps.Keys(rows)) {
		switch how := rows[field]; {
		case !fields[field]:
			t.Errorf("the table of %s has a row for %s, and the spec has no such field", changesPage, field)
		case !regexp.MustCompile(`^(live|rollout|refused)\b`).MatchString(how):
			t.Errorf("the row for %s in %s says %q: it must begin with live, rollout or refused", field, changesPage, how)
		case strings.Contains(how, "refused") != refused[field]:
			t.Errorf("the row for %s in %s says %q, and OVNCluster has a transition rule for it: %t", field, changesPage, how, refused[field])
		}
	}
}

// addFields adds the paths of a schema's fields. Maps, lists and resource requirements are one field each.
func addFields(fields map[string]bool, path string, s schema) {
	if len(s.Properties) == 0 || strings.HasSuffix(strings.ToLower(path), "resources") {
		fields[path] = true
		return
	}
	for name, property := range s.Properties {
		addFields(fields, strings.TrimPrefix(path+"."+name, "."), property)
	}
}

// documentedChanges returns the second cell of each row, by the fields in the first one.
func documentedChanges(t *testing.T) map[string]string {
	t.Helper()
	rows := map[string]string{}
	for line := range strings.Lines(pages(t)[changesPage]) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			continue
		}
		for _, match := range regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(cells[1], -1) {
			if rows[match[1]] != "" {
				t.Errorf("the table of %s has two rows for %s", changesPage, match[1])
			}
			rows[match[1]] = strings.TrimSpace(cells[2])
		}
	}
	return rows
}
