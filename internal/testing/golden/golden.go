// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package golden compares the results of tests with files in testdata. The flag -update writes the files, and the test fails for each that changed.
// Main and Check fail a package with files in testdata that no test read.
package golden

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Each runs f as a subtest for each file `<name>.in.yaml` that matches the pattern. f gets the decoded content and the path of
// `<name>.out`.
func Each[T any](t *testing.T, pattern string, f func(t *testing.T, in T, out string)) {
	t.Helper()
	inputs, err := filepath.Glob(pattern)
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs %s: %v", pattern, err)
	}
	for _, path := range inputs {
		name := strings.TrimSuffix(path, ".in.yaml")
		t.Run(filepath.Base(name), func(t *testing.T) {
			var in T
			read(path)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict(data, &in); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			f(t, in, name+".out")
		})
	}
}

// YAML is Compare for a value in YAML.
func YAML(t *testing.T, path string, value any) {
	t.Helper()
	got, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	Compare(t, path, got)
}

// Compare fails the test unless the content of the file equals got.
func Compare(t *testing.T, path string, got []byte) {
	t.Helper()
	read(path)
	if *update {
		before, err := os.ReadFile(path)
		if err == nil && bytes.Equal(before, got) {
			return
		}
		t.Errorf("%s is updated: look at the diff, and run the test again without -update", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test with -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got; go test with -update writes it):\n%s", path, diff)
	}
}
