// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one plausible defect.
type mutant struct {
	// id is unique. It begins with the area.
	id string
	// bug describes the defect, as seen by a user or a reader.
	bug string
	// file is the path from the root of the repository. old occurs in it exactly once, and is replaced by new.
	file, old, new string
	// tests are the packages whose tests must detect the defect; the package of the file if there are none.
	tests []string
	// run selects tests, as go test -run, to save time; empty runs all.
	run string
	// survives is the reason why no test detects the defect: it changes nothing that anyone observes, or it is an open gap. It is empty for a
	// mutant that the tests must kill.
	survives string
}

// packages returns the packages whose tests must detect the defect.
func (m mutant) packages() []string {
	if len(m.tests) > 0 {
		return m.tests
	}
	return []string{"./" + path.Dir(m.file)}
}

// apply returns the file's content with the defect.
func (m mutant) apply(content string) (string, error) {
	if n := strings.Count(content, m.old); n != 1 {
		return "", fmt.Errorf("%s has the old text %d times, want once", m.file, n)
	}
	return strings.Replace(content, m.old, m.new, 1), nil
}

// overlay writes the changed file and the overlay that names it to dir, and returns the path of the overlay. root is the root of the
// repository.
func (m mutant) overlay(root, dir string) (string, error) {
	original := filepath.Join(root, m.file)
	content, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	changed, err := m.apply(string(content))
	if err != nil {
		return "", err
	}
	replacement, overlay := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(replacement, []byte(changed), 0o600); err != nil {
		return "", err
	}
	encoded, err := json.Marshal(map[string]map[string]string{"Replace": {original: replacement}})
	if err != nil {
		return "", err
	}
	return overlay, os.WriteFile(overlay, encoded, 0o600)
}

// table returns all mutants, in the order of the page.
func table() []mutant {
	return slices.Concat(ipam, allocations, plan, translation, policies, operator, validation, plugin, node)
}
