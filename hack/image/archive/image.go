// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Image returns an image of the given layers for this machine's architecture, with no time of creation.
func Image(config v1.Config, layers ...*Layer) (v1.Image, error) {
	img := empty.Image
	for _, l := range layers {
		var err error
		if img, err = mutate.AppendLayers(img, l); err != nil {
			return nil, fmt.Errorf("add layer %s: %w", l.path, err)
		}
	}
	return configure(img, v1.ConfigFile{Architecture: runtime.GOARCH, Config: config})
}

// configure sets the configuration of an image for linux; its layers stay.
func configure(img v1.Image, config v1.ConfigFile) (v1.Image, error) {
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created, file.Config = "linux", config.Architecture, config.Created, config.Config
	img, err = mutate.ConfigFile(img, file)
	if err != nil {
		return nil, fmt.Errorf("set the image's configuration: %w", err)
	}
	return img, nil
}

// Write writes the image as a docker-archive at path. It returns false, and writes nothing, when the file there is an archive
// of this image under this tag.
func Write(path, tag string, img v1.Image) (written bool, err error) {
	ref, err := name.NewTag(tag)
	if err != nil {
		return false, fmt.Errorf("parse tag: %w", err)
	}
	config, err := img.ConfigName()
	if err != nil {
		return false, fmt.Errorf("hash the image's configuration: %w", err)
	}
	if holds(path, ref.String(), config.String()) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, fmt.Errorf("make the archive's directory: %w", err)
	}
	tmp := path + ".tmp"
	defer os.Remove(tmp)
	if err := tarball.WriteToFile(tmp, ref, img); err != nil {
		return false, fmt.Errorf("write archive %s: %w", tmp, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return false, fmt.Errorf("put the archive in place: %w", err)
	}
	return true, nil
}

func holds(path, tag, config string) bool {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(path) })
	return err == nil && len(manifest) == 1 && manifest[0].Config == config &&
		len(manifest[0].RepoTags) == 1 && manifest[0].RepoTags[0] == tag
}
