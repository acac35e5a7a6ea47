// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// withPattern are types and fields in lists without a bound on their length: CEL over them would exceed the API server's limit of cost.
var withPattern = []string{"DNSName", "SrcIPs", "DstIPs", "NextHopIP", "LocalConnectIP"}

// TestNoPatternsInMessages: the API server answers a value that does not match a pattern with the regular expression. A CEL rule has a message that says
// what to write.
func TestNoPatternsInMessages(t *testing.T) {
	files, err := filepath.Glob("v1*/*_types.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	declared := regexp.MustCompile(`^(?:type )?(\w+) `)
	var fields []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pattern := false
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			pattern = pattern || strings.Contains(line, ":Pattern=")
			if field := declared.FindStringSubmatch(line); pattern && field != nil {
				fields, pattern = append(fields, field[1]), false
			}
		}
	}
	if !slices.Equal(slices.Sorted(slices.Values(fields)), slices.Sorted(slices.Values(withPattern))) {
		t.Errorf("these fields have a pattern: %v, want %v: write an XValidation with a message, or add a field in a list without MaxItems", fields, withPattern)
	}
}
