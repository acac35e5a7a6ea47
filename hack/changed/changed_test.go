// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package changed

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

func git(t *testing.T, arguments ...string) {
	t.Helper()
	command := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, arguments...)...)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", arguments, err, out)
	}
}

func write(t *testing.T, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(name), 0o644); err != nil {
		t.Fatal(err)
	}
	git(t, "add", name)
	git(t, "commit", "-q", "-m", name)
}

func TestTargets(t *testing.T) {
	t.Chdir(t.TempDir())
	expect := func(base string, want ...string) {
		t.Helper()
		t.Setenv("BASE", base)
		if got, compared, err := Targets(); err != nil || !compared || !slices.Equal(got, want) {
			t.Errorf("with BASE=%s: %v, %v, %v; want %v", base, got, compared, err, want)
		}
	}
	nothing := func(why string) {
		t.Helper()
		t.Setenv("BASE", "")
		if got, compared, err := Targets(); err != nil || compared || len(got) > 0 {
			t.Errorf("%s: %v, %v, %v", why, got, compared, err)
		}
	}
	git(t, "init", "-q")
	write(t, "README.md")
	nothing("no origin")
	git(t, "update-ref", "refs/remotes/origin/main", "HEAD")
	nothing("a clone of main")
	write(t, "agent/agent.go")
	expect("")
	write(t, "controllers/operator/render/a.go")
	expect("", "test-operator-long")
	write(t, "Makefile")
	expect("", "test-operator-long", "test-tools")
	expect("HEAD~1", "test-tools")
	t.Setenv("BASE", "missing")
	if _, _, err := Targets(); err == nil {
		t.Error("a base that does not exist is no error")
	}
}

// TestTargetsExist compares the table with the repository.
func TestTargetsExist(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for target, paths := range tested {
		if !regexp.MustCompile(`(?m)^` + target + `:`).Match(makefile) {
			t.Errorf("the Makefile has no target %s", target)
		}
		for _, path := range paths {
			if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
				t.Error(err)
			}
		}
	}
}
