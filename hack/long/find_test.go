// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/gate"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("package x\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a", "b_test.go"), `
		func TestOne(t *testing.T) { gate.Skip(t, gate.Long); more() }
		func TestTwo(t *testing.T) { first(); gate.Skip(t, gate.Long) }
		func TestThree(t *testing.T) { gate.Skip(t, gate.OperatorLong) }
		func TestOther(t *testing.T) { t.Skip() }`)
	write(t, filepath.Join(root, "a", "code.go"), `func TestOf(t *testing.T) { gate.Skip(t, gate.Long) }`)
	write(t, filepath.Join(root, "_output", "c_test.go"), `func TestOld(t *testing.T) { gate.Skip(t, gate.Long) }`)
	found, err := find(root)
	if err != nil {
		t.Fatal(err)
	}
	want := map[gate.Target]marked{gate.Long: {"./a": {"TestOne", "TestTwo"}}, gate.OperatorLong: {"./a": {"TestThree"}}}
	if !reflect.DeepEqual(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}

func TestMarksThatNoTargetWouldSelectAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"in a helper":            `func helper(t *testing.T) { gate.Skip(t, gate.Long) }`,
		"in a method":            `func (w world) TestOne(t *testing.T) { gate.Skip(t, gate.Long) }`,
		"in a block":             `func TestOne(t *testing.T) { if true { gate.Skip(t, gate.Long) } }`,
		"in a subtest":           `func TestOne(t *testing.T) { t.Run("sub", func(t *testing.T) { gate.Skip(t, gate.Long) }) }`,
		"twice":                  `func TestOne(t *testing.T) { gate.Skip(t, gate.Long); gate.Skip(t, gate.OperatorLong) }`,
		"with an unknown target": `func TestOne(t *testing.T) { gate.Skip(t, gate.Other) }`,
		"with a text":            `func TestOne(t *testing.T) { gate.Skip(t, "test-long") }`,
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, filepath.Join(root, "a_test.go"), text)
			if _, err := find(root); err == nil || !strings.Contains(err.Error(), "must be one statement of a test") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestEveryTargetRunsItsTests checks that each target has tests and a recipe in the Makefile that runs them.
func TestEveryTargetRunsItsTests(t *testing.T) {
	root := filepath.Join("..", "..")
	found, err := find(root)
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range slices.Sorted(maps.Values(gate.Targets)) {
		if len(found[target]) == 0 {
			t.Errorf("no test has the mark of %s", target)
		}
		recipe := regexp.MustCompile(`(?m)^` + string(target) + `:.*(\n\t.*)*go run \./hack/long ` + string(target) + `\b`)
		if !recipe.Match(makefile) {
			t.Errorf("the Makefile's target %s does not run hack/long %s", target, target)
		}
	}
}

func TestATargetWithoutTestsFails(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := run(gate.Long, nil); err == nil || !strings.Contains(err.Error(), "no test has the mark of the target test-long") {
		t.Errorf("got %v", err)
	}
}
