// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestLocksNameTheSamePackagesForEachArchitecture(t *testing.T) {
	names := map[string][]string{}
	for _, architecture := range Architectures {
		packages, err := Lock(architecture)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := own.ReadFile(architecture + ".lock")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(raw), string(FormatLock(packages))); diff != "" {
			t.Errorf("%s is not what FormatLock writes:\n%s", LockFile(architecture), diff)
		}
		for _, p := range packages {
			names[architecture] = append(names[architecture], p.Name)
		}
	}
	if diff := cmp.Diff(names["amd64"], names["arm64"]); diff != "" {
		t.Error(diff)
	}
}

func TestLockHasNoOmittedPackage(t *testing.T) {
	packages, err := Lock("amd64")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		for _, name := range append([]string{"apt", "dpkg", "bash", "python3", "perl"}, omitted...) {
			if p.Name == name {
				t.Errorf("the image contains %s", name)
			}
		}
	}
}

func TestParseLockRefusesOtherLines(t *testing.T) {
	good := "ovn-host 25.03.0-1 amd64 " + hash + " pool/main/o/ovn/ovn-host_25.03.0-1_amd64.deb"
	if packages, err := parseLock("# comment\n\n"+good+"\n", "amd64"); err != nil || len(packages) != 1 || packages[0].security() {
		t.Fatalf("%+v, %v", packages, err)
	}
	for name, line := range map[string]string{
		"a field is missing":             strings.TrimSuffix(good, " pool/main/o/ovn/ovn-host_25.03.0-1_amd64.deb"),
		"another architecture":           strings.Replace(good, " amd64 ", " arm64 ", 1),
		"a name with an option":          "-" + good,
		"a short hash":                   strings.Replace(good, hash, hash[1:], 1),
		"a path that leaves":             strings.Replace(good, "pool/main", "pool/../..", 1),
		"a path that is no .deb":         strings.TrimSuffix(good, ".deb"),
		"a version with a shell command": strings.Replace(good, "25.03.0-1 amd64", "$(id) amd64", 1),
	} {
		t.Run(name, func(t *testing.T) {
			if packages, err := parseLock(line+"\n", "amd64"); err == nil {
				t.Errorf("accepted as %+v", packages)
			}
		})
	}
}

func TestInputsChangeWithTheLockAndTheSourcesOnly(t *testing.T) {
	inputs, err := Inputs("amd64")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(inputs, "\n")
	for name, want := range map[string]bool{"amd64.lock\n": true, "root.go\n": true, "arm64.lock\n": false, "lock_test.go\n": false} {
		if got := strings.Contains(all+"\n", "\n"+name) || strings.HasPrefix(all, name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
	if _, err := Inputs("riscv64"); err == nil {
		t.Error("an architecture without a lock file has inputs")
	}
}
