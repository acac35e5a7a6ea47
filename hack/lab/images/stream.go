// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nameAnnotation is the annotation that containerd reads for an image's full reference when it imports an OCI layout.
const nameAnnotation = "io.containerd.image.name"

// Stream writes images to w as a tar archive of an OCI layout (OCI image-spec, image-layout.md). It skips the configuration and
// layers for which has returns true. It writes a blob once even if several images share it.
func Stream(w io.Writer, images []*Image, has func(digest v1.Hash) bool) error {
	out := &layout{tar: tar.NewWriter(w), written: map[v1.Hash]bool{}}
	if err := out.bytes("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, img := range images {
		for _, b := range img.blobs {
			if err := out.blob(b, has); err != nil {
				return fmt.Errorf("write image %s: %w", img.Reference, err)
			}
		}
		manifest := bytesBlob(img.manifest, types.OCIManifestSchema1)
		if err := out.blob(manifest, nil); err != nil {
			return fmt.Errorf("write image %s: %w", img.Reference, err)
		}
		d := manifest.descriptor()
		d.Annotations = map[string]string{nameAnnotation: img.Reference}
		index.Manifests = append(index.Manifests, d)
	}
	raw, err := json.Marshal(index)
	if err != nil {
		return fmt.Errorf("encode the index: %w", err)
	}
	if err := out.bytes("index.json", raw); err != nil {
		return err
	}
	return out.tar.Close()
}

type layout struct {
	tar     *tar.Writer
	written map[v1.Hash]bool
}

func (l *layout) blob(b blob, has func(v1.Hash) bool) error {
	if l.written[b.digest] || (has != nil && has(b.digest)) {
		return nil
	}
	l.written[b.digest] = true
	content, err := b.open()
	if err != nil {
		return err
	}
	defer content.Close()
	if err := l.header("blobs/sha256/"+b.digest.Hex, b.size); err != nil {
		return err
	}
	_, err = io.Copy(l.tar, content)
	return err
}

func (l *layout) bytes(name string, content []byte) error {
	if err := l.header(name, int64(len(content))); err != nil {
		return err
	}
	_, err := l.tar.Write(content)
	return err
}

func (l *layout) header(name string, size int64) error {
	return l.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, Format: tar.FormatPAX})
}
