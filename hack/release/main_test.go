// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/golden"
)

func TestMain(m *testing.M) { golden.Main(m) }

func TestKrewManifest(t *testing.T) {
	manifest, err := krew("v1.2.3", "https://example.org/download", []plugin{
		{system: "linux", architecture: "arm64", binary: "kubectl-ko", archive: "kubectl-ko-v1.2.3-linux-arm64.tar.gz", sha256: "01"},
		{system: "windows", architecture: "amd64", binary: "kubectl-ko.exe", archive: "kubectl-ko-v1.2.3-windows-amd64.tar.gz", sha256: "02"},
	})
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "testdata/ko.yaml", manifest)
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]bool{
		"v1.2.3": true, "v0.1.0-rc.1": true, "v10.0.0": true, "1.2.3": false, "v1.2": false, "v01.2.3": false, "v1.2.3-": false, "v1.2.3 -x": false, "": false, "v1.2.3\n": false,
	} {
		if versionPattern.MatchString(version) != want {
			t.Errorf("%q: want %v", version, want)
		}
	}
}

func TestChecksumsCoverAllFilesButThemselves(t *testing.T) {
	dist := t.TempDir()
	if _, err := checksums(dist); err == nil {
		t.Error("an empty release has checksums")
	}
	for _, name := range []string{"b", "a", sumsFile} {
		if err := os.WriteFile(filepath.Join(dist, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	got, err := checksums(dist)
	if want := empty + "  a\n" + empty + "  b\n"; err != nil || string(got) != want {
		t.Errorf("%s (%v)", got, err)
	}
}
