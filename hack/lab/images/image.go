// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package images imports container images into containerd. It streams an OCI layout to `ctr images import` and leaves out the
// layers that the node has already, so that a new build of a program does not transfer the root file system below it again.
package images

import (
	"encoding/json"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image is an image with its reference and the OCI manifest under which containerd stores it.
type Image struct {
	Reference string // "kiln.local/kiln:dev"
	manifest  []byte
	blobs     []blob // the configuration and the layers
}

// blob is content that can be read repeatedly.
type blob struct {
	digest v1.Hash
	size   int64
	kind   types.MediaType
	open   func() (io.ReadCloser, error)
}

// Digest is the hash of the manifest: images with the same digest are the same.
func (i *Image) Digest() string { return "sha256:" + sum(i.manifest) }

// FromImage returns an image of package archive under a reference.
func FromImage(reference string, img v1.Image) (*Image, error) {
	raw, err := img.RawConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration of %s: %w", reference, err)
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, fmt.Errorf("list the layers of %s: %w", reference, err)
	}
	blobs := make([]blob, 0, len(layers))
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return nil, fmt.Errorf("hash a layer of %s: %w", reference, err)
		}
		size, err := l.Size()
		if err != nil {
			return nil, fmt.Errorf("measure a layer of %s: %w", reference, err)
		}
		blobs = append(blobs, blob{digest: digest, size: size, kind: types.OCIUncompressedLayer, open: l.Compressed})
	}
	return assemble(reference, raw, blobs)
}

// assemble makes the manifest of an image from its configuration and layers.
func assemble(reference string, config []byte, layers []blob) (*Image, error) {
	configBlob := bytesBlob(config, types.OCIConfigJSON)
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: configBlob.descriptor()}
	for _, l := range layers {
		m.Layers = append(m.Layers, l.descriptor())
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the manifest of %s: %w", reference, err)
	}
	return &Image{Reference: reference, manifest: raw, blobs: append([]blob{configBlob}, layers...)}, nil
}

func (b blob) descriptor() v1.Descriptor {
	return v1.Descriptor{MediaType: b.kind, Digest: b.digest, Size: b.size}
}
