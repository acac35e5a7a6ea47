// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestWriteLayerGivesTheSameBytesWhateverTheOrderAndTheTimes(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	write(t, program, "#!", 0o755)
	entries := []Entry{
		{Path: "/usr/bin/kiln", Source: program},
		{Path: "/opt/kiln/cni/kube-ovn", Link: "/usr/bin/kiln"},
		{Path: "/etc/kiln"},
	}
	first, err := WriteLayer(filepath.Join(dir, "1.tar"), entries)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(program, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	second, err := WriteLayer(filepath.Join(dir, "2.tar"), []Entry{entries[2], entries[0], entries[1]})
	if err != nil {
		t.Fatal(err)
	}
	if first.digest != second.digest {
		t.Errorf("digests differ: %s, %s", first.digest, second.digest)
	}
	want := []string{"etc/", "etc/kiln/", "opt/", "opt/kiln/", "opt/kiln/cni/", "opt/kiln/cni/kube-ovn", "usr/", "usr/bin/", "usr/bin/kiln"}
	if diff := cmp.Diff(want, members(t, second)); diff != "" {
		t.Error(diff)
	}
}

func TestWriteSkipsAnArchiveThatHoldsTheImageAlready(t *testing.T) {
	dir := t.TempDir()
	program, output := filepath.Join(dir, "program"), filepath.Join(dir, "out", "image.tar")
	expect := func(content, tag string, want bool) {
		t.Helper()
		write(t, program, content, 0o755)
		layer, err := WriteLayer(filepath.Join(dir, "layer.tar"), []Entry{{Path: "/program", Source: program}})
		if err != nil {
			t.Fatal(err)
		}
		img, err := Image(v1.Config{Entrypoint: []string{"/program"}}, layer)
		if err != nil {
			t.Fatal(err)
		}
		if written, err := Write(output, tag, img); err != nil || written != want {
			t.Errorf("content %q, tag %s: written %v (%v), want %v", content, tag, written, err, want)
		}
	}
	expect("a", "kiln.local/kiln:dev", true)
	expect("a", "kiln.local/kiln:dev", false)
	expect("b", "kiln.local/kiln:dev", true)
	expect("b", "kiln.local/kiln:other", true)

	img, err := tarball.ImageFromPath(output, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil || config.OS != "linux" || config.Config.Entrypoint[0] != "/program" || len(config.RootFS.DiffIDs) != 1 {
		t.Errorf("the archive holds %+v (%v)", config, err)
	}
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

func members(t *testing.T, l *Layer) []string {
	t.Helper()
	raw, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}
