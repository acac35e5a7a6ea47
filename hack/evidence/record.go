// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// directory has the records. They are committed.
const directory = "evidence"

// Results of a suite.
const (
	passed = "passed"
	failed = "failed"
)

// Record is the evidence of one run of a suite. It has no name of a machine or of a person, and no path.
type Record struct {
	Target string `json:"target"`
	// Settings are the variables of the suite that had another value than their default, as NAME=value.
	Settings []string `json:"settings,omitempty"`
	Result   string   `json:"result"`
	// Tree identifies the files of the product (Tree), and Commit is one that has them.
	Tree    string    `json:"tree"`
	Commit  string    `json:"commit"`
	Started time.Time `json:"started"`
	Seconds int       `json:"seconds"`
	Counts
	Machine Machine `json:"machine"`
}

// Machine describes where the suite ran.
type Machine struct {
	Cores        int    `json:"cores"`
	MemoryGiB    int    `json:"memoryGiB"`
	Kernel       string `json:"kernel"`
	Distribution string `json:"distribution"`
}

// proves reports whether the record shows that a whole suite passes with a product.
func (r Record) proves(tree string) bool {
	return r.Tree == tree && r.Result == passed && len(r.Settings) == 0 && r.total() > 0
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// file returns the name of the record's file. Runs with settings have files of their own, so that they do not replace the record of the whole suite.
func (r Record) file() string {
	name := r.Target
	for _, s := range r.Settings {
		word := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(s), "-"), "-")
		name += "." + word[:min(len(word), 40)]
	}
	return name + ".json"
}

func (r Record) write(root string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the record: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(root, directory), 0o755); err != nil {
		return fmt.Errorf("make the directory of records: %w", err)
	}
	if err := os.WriteFile(filepath.Join(root, directory, r.file()), append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// readRecords returns all records, ordered by target and settings.
func readRecords(root string) ([]Record, error) {
	paths, err := filepath.Glob(filepath.Join(root, directory, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("list the records: %w", err)
	}
	slices.Sort(paths)
	var records []Record
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a record: %w", err)
		}
		var r Record
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, fmt.Errorf("decode the record %s: %w", filepath.Base(path), err)
		}
		if r.file() != filepath.Base(path) {
			return nil, fmt.Errorf("the record in %s belongs in %s", filepath.Base(path), r.file())
		}
		records = append(records, r)
	}
	return records, nil
}
