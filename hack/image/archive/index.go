// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// OCIImage returns an OCI image for linux with compressed layers.
func OCIImage(config v1.ConfigFile, layers ...*Layer) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range layers {
		compressed, err := tarball.LayerFromOpener(l.Uncompressed, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching,
			tarball.WithCompressionLevel(gzip.DefaultCompression)) // the package's default is gzip.BestSpeed: 16 % more to pull
		if err != nil {
			return nil, fmt.Errorf("compress layer %s: %w", l.path, err)
		}
		if img, err = mutate.AppendLayers(img, compressed); err != nil {
			return nil, fmt.Errorf("add layer %s: %w", l.path, err)
		}
	}
	return configure(img, config)
}

// Index returns an OCI image index of images for linux, by their architectures.
func Index(annotations map[string]string, images ...v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("read the image's configuration: %w", err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture}},
		})
	}
	return mutate.Annotations(index, annotations).(v1.ImageIndex), nil
}

// Annotations by which programs that load an OCI layout name the image: the tag (OCI image specification), and the whole reference (containerd).
const (
	tagAnnotation  = "org.opencontainers.image.ref.name"
	nameAnnotation = "io.containerd.image.name"
)

// WriteLayout writes the index as an OCI image layout, in a tar archive at path. The reference, with its tag, names the index there. The same index
// gives the same bytes.
func WriteLayout(path, reference, tag string, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".layout-")
	if err != nil {
		return fmt.Errorf("make a directory for the image layout: %w", err)
	}
	defer os.RemoveAll(dir)
	target, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = target.AppendIndex(index, layout.WithAnnotations(map[string]string{tagAnnotation: tag, nameAnnotation: reference}))
	}
	if err != nil {
		return fmt.Errorf("write the image layout: %w", err)
	}
	if err := pack(dir, path+".tmp"); err != nil {
		return errors.Join(err, os.Remove(path+".tmp"))
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("put the image layout in place: %w", err)
	}
	return nil
}

// pack writes the files below dir as a tar archive, without times and owners.
func pack(dir, path string) error {
	var entries []Entry
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			entries = append(entries, Entry{Path: strings.TrimPrefix(file, dir), Source: file})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list the image layout: %w", err)
	}
	_, err = WriteLayer(path, entries)
	return err
}

// ReadLayout returns the only index of an OCI image layout in a tar archive. It unpacks the archive to the directory into.
func ReadLayout(path, into string) (v1.ImageIndex, error) {
	if err := unpack(path, into); err != nil {
		return nil, fmt.Errorf("unpack the image layout %s: %w", path, err)
	}
	all, err := layout.ImageIndexFromPath(into)
	if err != nil {
		return nil, fmt.Errorf("read the image layout %s: %w", path, err)
	}
	found, err := indexes(all)
	if err != nil {
		return nil, fmt.Errorf("read the image layout %s: %w", path, err)
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("the image layout %s has %d image indexes, not 1", path, len(found))
	}
	return found[0], nil
}

func indexes(all v1.ImageIndex) ([]v1.ImageIndex, error) {
	manifest, err := all.IndexManifest()
	if err != nil {
		return nil, err
	}
	var found []v1.ImageIndex
	for _, m := range manifest.Manifests {
		if !match.MediaTypes(string(types.OCIImageIndex))(m) {
			continue
		}
		index, err := all.ImageIndex(m.Digest)
		if err != nil {
			return nil, err
		}
		found = append(found, index)
	}
	return found, nil
}

func unpack(path, into string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.OpenRoot(into) // refuses names that leave it
	if err != nil {
		return err
	}
	defer root.Close()
	for archive := tar.NewReader(f); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := root.MkdirAll(filepath.Dir(h.Name), 0o755); err != nil {
			return err
		}
		out, err := root.Create(h.Name)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, archive)
		if err = errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}
