// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package archive makes container images without a registry or a container engine: layers from tar archives and files, written
// as a docker-archive. The same inputs give the same bytes.
package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Layer is an uncompressed tar archive on disk, used as a layer. The image keeps it uncompressed too: a lab does not move it over a
// network, and its digest is then the one under which nodes store the content.
type Layer struct {
	path   string
	digest v1.Hash
	size   int64
}

var _ v1.Layer = (*Layer)(nil)

// TarLayer returns the tar archive at path as a layer. The file must not change afterwards.
func TarLayer(path string) (*Layer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open layer: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	if err != nil {
		return nil, fmt.Errorf("read layer %s: %w", path, err)
	}
	return &Layer{path: path, size: size, digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}}, nil
}

// Digest is the hash of the archive.
func (l *Layer) Digest() (v1.Hash, error) { return l.digest, nil }

// DiffID is the same as Digest: the layer is not compressed.
func (l *Layer) DiffID() (v1.Hash, error) { return l.digest, nil }

// Compressed returns the archive unchanged.
func (l *Layer) Compressed() (io.ReadCloser, error) { return os.Open(l.path) }

// Uncompressed returns the archive.
func (l *Layer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.path) }

// Size is the archive's length in bytes.
func (l *Layer) Size() (int64, error) { return l.size, nil }

// MediaType is the type of an uncompressed layer.
func (l *Layer) MediaType() (types.MediaType, error) { return types.DockerUncompressedLayer, nil }

// Entry is a file, symbolic link or directory of a layer.
type Entry struct {
	Path   string // in the image, absolute
	Source string // file to copy; its mode bits count, its owner and times do not
	Link   string // target of a symbolic link; without Source and Link the entry is a directory
}

// WriteLayer writes the entries as a tar archive at path, and returns it as a layer. Directories above entries are included.
func WriteLayer(path string, entries []Entry) (*Layer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("create layer: %w", err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for _, e := range withParents(entries) {
		if err := e.write(w); err != nil {
			return nil, fmt.Errorf("add %s to a layer: %w", e.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write layer %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("write layer %s: %w", path, err)
	}
	return TarLayer(path)
}

// withParents returns the entries sorted by path, with every parent directory once and before its content.
func withParents(entries []Entry) []Entry {
	byPath := map[string]Entry{}
	for _, e := range entries {
		for dir := path.Dir(e.Path); dir != "/" && dir != "."; dir = path.Dir(dir) {
			if _, there := byPath[dir]; !there {
				byPath[dir] = Entry{Path: dir}
			}
		}
		byPath[e.Path] = e
	}
	out := make([]Entry, 0, len(byPath))
	for _, e := range byPath {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return out
}

func (e Entry) write(w *tar.Writer) error {
	h := &tar.Header{Name: strings.TrimPrefix(e.Path, "/"), Format: tar.FormatPAX}
	switch {
	case e.Source != "":
		return e.copy(w, h)
	case e.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Link, 0o777
	default:
		h.Typeflag, h.Mode = tar.TypeDir, 0o755
		h.Name += "/"
	}
	return w.WriteHeader(h)
}

func (e Entry) copy(w *tar.Writer, h *tar.Header) error {
	f, err := os.Open(e.Source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Mode, h.Size = tar.TypeReg, int64(info.Mode().Perm()), info.Size()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
