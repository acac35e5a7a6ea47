// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// TestSharedModulesHaveOneVersion: Go compiles a package once for the image, the tests and the lab's programs if it and all packages that it imports have
// the same version. One other version of golang.org/x/net compiles client-go again, which takes minutes.
func TestSharedModulesHaveOneVersion(t *testing.T) {
	source, err := Source()
	if err != nil {
		t.Fatal(err)
	}
	ours := versions(t, source)
	for _, dir := range []string{programsModule, testsModule} {
		shared := 0
		for module, version := range versions(t, filepath.Join(source, dir)) {
			want, both := ours[module]
			if !both {
				continue
			}
			shared++
			if version != want {
				t.Errorf("%s requires %s %s, and go.mod requires %s: run `go get` for the older one", dir, module, version, want)
			}
		}
		if shared < 50 {
			t.Errorf("%s shares %d modules with go.mod: this test does not read them", dir, shared)
		}
	}
}

// versions returns the versions of the modules that the go.mod in a directory requires.
func versions(t *testing.T, dir string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.Parse("go.mod", raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, r := range file.Require {
		out[r.Mod.Path] = r.Mod.Version
	}
	for _, r := range file.Replace {
		if _, required := out[r.Old.Path]; required {
			out[r.Old.Path] = r.New.Version
		}
	}
	return out
}

// TestFlagsOfMakeMatchThePrograms: with other flags, Go compiles everything again.
func TestFlagsOfMakeMatchThePrograms(t *testing.T) {
	source, err := Source()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(source, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "\nCOMPILER_FLAGS := " + strings.Join(CompilerFlags, " ") + "\n"; !strings.Contains(string(raw), want) {
		t.Errorf("the Makefile has no line%s", want)
	}
}

func TestNamesOfBuiltPrograms(t *testing.T) {
	for pkg, want := range map[string]string{
		"go.etcd.io/etcd/server/v3": "server", "k8s.io/kubernetes/cmd/kubelet": "kubelet", "./coredns": "coredns", "example.com/v2x": "v2x", "example.com/v": "v",
	} {
		if got := builtName(pkg); got != want {
			t.Errorf("the program of %s is called %s, want %s", pkg, got, want)
		}
	}
}
