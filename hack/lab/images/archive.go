// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

var gzipMagic = []byte{0x1f, 0x8b}

// FromArchive returns the images of a docker-archive, one for each tag. It does not read uncompressed layers: their digests are in
// the image's configuration, and containerd verifies them.
func FromArchive(path string) ([]*Image, error) {
	members, err := index(path)
	if err != nil {
		return nil, err
	}
	raw, err := members.read("manifest.json")
	if err != nil {
		return nil, fmt.Errorf("%s is not a docker-archive: %w", path, err)
	}
	var entries []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(raw, &entries); err != nil {
		return nil, fmt.Errorf("decode the manifest of %s: %w", path, err)
	}
	var out []*Image
	for _, e := range entries {
		config, err := members.read(e.Config)
		if err != nil {
			return nil, fmt.Errorf("read the image's configuration in %s: %w", path, err)
		}
		layers, err := members.layers(config, e.Layers)
		if err != nil {
			return nil, fmt.Errorf("layers of %s: %w", path, err)
		}
		for _, tag := range e.RepoTags {
			img, err := assemble(tag, config, layers)
			if err != nil {
				return nil, err
			}
			out = append(out, img)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s holds no image with a tag", path)
	}
	return out, nil
}

// members maps the files of an archive to the offset and length of their content.
type members struct {
	path  string
	files map[string]section
}

type section struct{ offset, size int64 }

func index(archive string) (members, error) {
	m := members{path: archive, files: map[string]section{}}
	f, err := os.Open(archive)
	if err != nil {
		return m, fmt.Errorf("open image archive: %w", err)
	}
	defer f.Close()
	links := map[string]string{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return m, fmt.Errorf("read image archive %s: %w", archive, err)
		}
		name := path.Clean(h.Name)
		if h.Typeflag == tar.TypeSymlink { // docker save replaces a repeated layer by a link
			links[name] = path.Join(path.Dir(name), h.Linkname)
			continue
		}
		offset, err := f.Seek(0, io.SeekCurrent) // the reader does not read ahead of a header
		if err != nil {
			return m, fmt.Errorf("find %s in %s: %w", h.Name, archive, err)
		}
		m.files[name] = section{offset: offset, size: h.Size}
	}
	for name, target := range links {
		m.files[name] = m.files[target]
	}
	return m, nil
}

func (m members) open(name string) (io.ReadCloser, error) {
	s, there := m.files[path.Clean(name)]
	if !there {
		return nil, fmt.Errorf("no file %s", name)
	}
	f, err := os.Open(m.path)
	if err != nil {
		return nil, fmt.Errorf("open image archive: %w", err)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, s.offset, s.size), f}, nil
}

func (m members) read(name string) ([]byte, error) {
	f, err := m.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

func (m members) layers(config []byte, names []string) ([]blob, error) {
	var file v1.ConfigFile
	if err := json.Unmarshal(config, &file); err != nil {
		return nil, fmt.Errorf("decode the image's configuration: %w", err)
	}
	if len(file.RootFS.DiffIDs) != len(names) {
		return nil, fmt.Errorf("the configuration names %d layers, the manifest %d", len(file.RootFS.DiffIDs), len(names))
	}
	layers := make([]blob, 0, len(names))
	for i, name := range names {
		l, err := m.layer(name, file.RootFS.DiffIDs[i])
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	return layers, nil
}

func (m members) layer(name string, diffID v1.Hash) (blob, error) {
	b := blob{
		digest: diffID, kind: types.OCIUncompressedLayer, size: m.files[path.Clean(name)].size,
		open: func() (io.ReadCloser, error) { return m.open(name) },
	}
	f, err := m.open(name)
	if err != nil {
		return blob{}, err
	}
	defer f.Close()
	start := make([]byte, len(gzipMagic))
	if _, err := io.ReadFull(f, start); err != nil {
		return blob{}, fmt.Errorf("read %s: %w", name, err)
	}
	if !bytes.Equal(start, gzipMagic) {
		return b, nil
	}
	h := sha256.New()
	h.Write(start)
	if _, err := io.Copy(h, f); err != nil {
		return blob{}, fmt.Errorf("read %s: %w", name, err)
	}
	b.digest, b.kind = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}, types.OCILayer
	return b, nil
}

func sum(content []byte) string {
	h := sha256.Sum256(content)
	return hex.EncodeToString(h[:])
}

func bytesBlob(content []byte, kind types.MediaType) blob {
	return blob{
		digest: v1.Hash{Algorithm: "sha256", Hex: sum(content)}, size: int64(len(content)), kind: kind,
		open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
	}
}
