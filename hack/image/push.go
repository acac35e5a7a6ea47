// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kiln-net/kiln/hack/image/archive"
)

// index returns the image of all platforms.
func (b *build) index(ctx context.Context) (v1.ImageIndex, error) {
	architectures, err := b.architectures()
	if err != nil {
		return nil, err
	}
	if err := b.prepare(ctx, architectures...); err != nil {
		return nil, err
	}
	return b.assemble(ctx, architectures)
}

// assemble returns the image of these architectures, for which prepare has built everything.
func (b *build) assemble(ctx context.Context, architectures []string) (v1.ImageIndex, error) {
	images := make([]v1.Image, 0, len(architectures))
	for _, architecture := range architectures {
		err := b.report.Step("assemble the image for "+architecture, func() error {
			layers, err := b.layers(ctx, architecture)
			if err != nil {
				return err
			}
			img, err := archive.OCIImage(v1.ConfigFile{Architecture: architecture, Created: *b.created, Config: b.config()}, layers...)
			images = append(images, img)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return archive.Index(b.labels(), images...)
}

// layout writes the OCI layout.
func (b *build) layout(ctx context.Context) error {
	index, err := b.index(ctx)
	if err != nil {
		return err
	}
	return b.writeLayout(index)
}

func (b *build) writeLayout(index v1.ImageIndex) error {
	return b.report.Step("write image "+b.tag, func() error {
		tag, err := name.NewTag(b.tag)
		if err != nil {
			return fmt.Errorf("parse the image's name: %w", err)
		}
		if err := archive.WriteLayout(b.output, tag.Name(), tag.TagStr(), index); err != nil {
			return err
		}
		return b.print(tag, index)
	})
}

// push pushes a new build, or the layout in a file, to the registry of the tag.
func (b *build) push(ctx context.Context, from string, insecure bool) error {
	if _, err := name.NewTag(b.tag); err != nil { // before the build
		return fmt.Errorf("parse the image's name: %w", err)
	}
	index, done, err := b.pushed(ctx, from)
	if err != nil {
		return err
	}
	defer done()
	return b.report.Step("push image "+b.tag, func() error { return b.write(ctx, index, insecure) })
}

// write writes the image to the registry of the tag.
func (b *build) write(ctx context.Context, index v1.ImageIndex, insecure bool) error {
	var options []name.Option
	if insecure {
		options = append(options, name.Insecure)
	}
	tag, err := name.NewTag(b.tag, options...)
	if err != nil {
		return fmt.Errorf("parse the image's name: %w", err)
	}
	if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("push the image: %w", err)
	}
	return b.print(tag, index)
}

// pushed returns the image to push, and a function that removes temporary files of it.
func (b *build) pushed(ctx context.Context, from string) (index v1.ImageIndex, done func(), err error) {
	if from == "" {
		index, err = b.index(ctx)
		return index, func() {}, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(from), ".push-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a directory for the image layout: %w", err)
	}
	index, err = archive.ReadLayout(from, dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, nil, err
	}
	return index, func() { _ = os.RemoveAll(dir) }, nil
}

// print prints the reference of the image by its digest.
func (b *build) print(tag name.Tag, index v1.ImageIndex) error {
	digest, err := index.Digest()
	if err != nil {
		return fmt.Errorf("hash the image: %w", err)
	}
	fmt.Println(tag.Context().Digest(digest.String()).Name())
	return nil
}
