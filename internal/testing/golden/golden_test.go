// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestHelper is run by TestRuns in another process.
func TestHelper(t *testing.T) {
	if os.Getenv("GOLDEN_HELPER") == "" {
		return
	}
	t.Chdir(os.Getenv("GOLDEN_HELPER"))
	Compare(t, "testdata/result.out", []byte("new\n"))
	Each(t, "testdata/*.in.yaml", func(t *testing.T, in map[string]string, out string) { YAML(t, out+".yaml", in) })
}

func TestRuns(t *testing.T) {
	run := func(directory string, flags ...string) (string, bool) {
		cmd := exec.Command(os.Args[0], slices.Concat([]string{"-test.run=^TestHelper$", "-test.v"}, flags)...)
		cmd.Env = append(os.Environ(), "GOLDEN_HELPER="+directory)
		text, err := cmd.CombinedOutput()
		return string(text), err == nil
	}
	directory := t.TempDir()
	file := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(directory, "testdata"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(directory, "testdata", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file("result.out", "old\n")
	file("a.in.yaml", "key: value\n")
	file("a.out.yaml", "key: value\n")
	if text, passed := run(directory); passed || !strings.Contains(text, "result.out differs") || strings.Contains(text, "a.out.yaml") {
		t.Errorf("with one file that differs: passed=%v\n%s", passed, text)
	}
	if text, passed := run(directory, "-update"); passed || !strings.Contains(text, "result.out is updated: look at the diff") || strings.Contains(text, "a.out.yaml") {
		t.Errorf("with -update: passed=%v\n%s", passed, text)
	}
	if text, passed := run(directory); !passed {
		t.Errorf("after -update:\n%s", text)
	}
	if text, passed := run(directory, "-update"); !passed {
		t.Errorf("with -update and nothing to write:\n%s", text)
	}
}

func TestOrphans(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"testdata/read.out", "testdata/orphan.out", "testdata/more/orphan.out", "testdata/fuzz/FuzzX/seed"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	Compare(t, "./testdata/read.out", []byte("x"))
	found, err := orphans("testdata")
	if want := []string{"testdata/more/orphan.out", "testdata/orphan.out"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("orphans are %v (%v), want %v", found, err, want)
	}
	if found, err := orphans("nowhere"); err != nil || found != nil {
		t.Errorf("orphans of a directory that does not exist are %v (%v)", found, err)
	}
}
