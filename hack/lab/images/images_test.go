// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kiln-net/kiln/hack/image/archive"
)

func TestAnArchiveStreamsAsTheImageItWasMadeFrom(t *testing.T) {
	base, program := layerOf(t, "base"), layerOf(t, "program")
	made := imageOf(t, base, program)
	path := filepath.Join(t.TempDir(), "image.tar")
	if _, err := archive.Write(path, "kiln.local/kiln:dev", made); err != nil {
		t.Fatal(err)
	}
	direct, err := FromImage("kiln.local/kiln:dev", made)
	if err != nil {
		t.Fatal(err)
	}
	read, err := FromArchive(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(read) != 1 || read[0].Reference != "kiln.local/kiln:dev" || read[0].Digest() != direct.Digest() {
		t.Fatalf("got %d images, the first %+v", len(read), read[0])
	}
	all := streamed(t, read, func(v1.Hash) bool { return false })
	for _, b := range append(read[0].blobs, bytesBlob(read[0].manifest, "")) {
		if sum(all["blobs/sha256/"+b.digest.Hex]) != b.digest.Hex {
			t.Errorf("blob %s is missing or another", b.digest)
		}
	}
	baseDigest, _ := base.Digest()
	without := streamed(t, read, func(d v1.Hash) bool { return d == baseDigest })
	if _, there := without["blobs/sha256/"+baseDigest.Hex]; there || len(without) != len(all)-1 {
		t.Errorf("a layer that is there already was written, or another was not: %d of %d files", len(without), len(all))
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(without["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations[nameAnnotation] != "kiln.local/kiln:dev" {
		t.Errorf("got index %+v", index)
	}
}

func TestSharedLayersAreWrittenOnce(t *testing.T) {
	base := layerOf(t, "base")
	first, err := FromImage("a:1", imageOf(t, base, layerOf(t, "a")))
	if err != nil {
		t.Fatal(err)
	}
	second, err := FromImage("b:1", imageOf(t, base, layerOf(t, "b")))
	if err != nil {
		t.Fatal(err)
	}
	const layout, perImage, layers = 2, 2, 3
	if files := streamed(t, []*Image{first, second}, func(v1.Hash) bool { return false }); len(files) != layout+2*perImage+layers {
		t.Errorf("got %d files", len(files))
	}
}

func TestACompressedLayerHasTheDigestOfItsBytes(t *testing.T) {
	var layer bytes.Buffer
	z := gzip.NewWriter(&layer)
	if _, err := z.Write([]byte("content")); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	writeTar(t, path, map[string]string{
		"manifest.json": `[{"Config":"c.json","RepoTags":["x:1"],"Layers":["l/layer.tar"]}]`,
		"c.json":        `{"rootfs":{"type":"layers","diff_ids":["sha256:` + strings.Repeat("0", 64) + `"]}}`,
		"l/layer.tar":   layer.String(),
	})
	got, err := FromArchive(path)
	if err != nil {
		t.Fatal(err)
	}
	if b := got[0].blobs[1]; b.digest.Hex != sum(layer.Bytes()) || !strings.HasSuffix(string(b.kind), "gzip") {
		t.Errorf("got %+v", b)
	}
}

func TestArchivesThatAreNotImagesAreRefused(t *testing.T) {
	const digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	cases := map[string]map[string]string{
		"no manifest":    {"x": "y"},
		"no tag":         {"manifest.json": `[{"Config":"c","Layers":[]}]`, "c": `{}`},
		"missing config": {"manifest.json": `[{"Config":"c","RepoTags":["x:1"]}]`},
		"missing layer":  {"manifest.json": `[{"Config":"c","RepoTags":["x:1"],"Layers":["l"]}]`, "c": `{"rootfs":{"diff_ids":["` + digest + `"]}}`},
		"layers unequal": {"manifest.json": `[{"Config":"c","RepoTags":["x:1"],"Layers":["l"]}]`, "c": `{}`, "l": "xx"},
	}
	for name, files := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "image.tar")
			writeTar(t, path, files)
			if _, err := FromArchive(path); err == nil {
				t.Error("no error")
			}
		})
	}
}

func layerOf(t *testing.T, content string) *archive.Layer {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "file")
	if err := os.WriteFile(source, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	layer, err := archive.WriteLayer(filepath.Join(dir, "layer.tar"), []archive.Entry{{Path: "/" + content, Source: source}})
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

func imageOf(t *testing.T, layers ...*archive.Layer) v1.Image {
	t.Helper()
	img, err := archive.Image(v1.Config{}, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func streamed(t *testing.T, images []*Image, has func(v1.Hash) bool) map[string][]byte {
	t.Helper()
	var out bytes.Buffer
	if err := Stream(&out, images, has); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func writeTar(t *testing.T, path string, files map[string]string) {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
