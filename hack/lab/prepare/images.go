// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kiln-net/kiln/hack/image/archive"
	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/config"
	"github.com/kiln-net/kiln/hack/lab/images"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// nodeImages is a state directory of containerd with the images that every node starts with. Nodes share its files by hard links,
// so that none has to import the images.
func nodeImages(o Options) cache.Artifact {
	pause := filepath.Join(o.Source, "hack/lab/pause")
	return cache.Artifact{
		Name: "containerd", Title: "import the lab's images into containerd", Outputs: []string{"containerd"},
		Inputs: func() ([]string, error) {
			inputs := []string{config.PauseImage, config.AgnhostImage, config.CoreDNSImage, config.BaseImage}
			source, err := os.ReadFile(filepath.Join(pause, "main.go"))
			if err != nil {
				return nil, fmt.Errorf("read the pause program: %w", err)
			}
			inputs = append(inputs, string(source))
			for _, name := range []string{"kubernetes", prepared.Root, "node"} {
				key, err := o.Cache.Key(name)
				if err != nil {
					return nil, err
				}
				inputs = append(inputs, key)
			}
			return inputs, nil
		},
		Build: func(ctx context.Context, into string) error {
			program := filepath.Join(into, "pause")
			args := append(append([]string{"build"}, CompilerFlags...), linkerFlags, "-o", program, "./hack/lab/pause")
			if err := run(ctx, o.Cache.Log("containerd"), o.Source, []string{"CGO_ENABLED=0"}, "go", args...); err != nil {
				return err
			}
			made, err := labImages(o.Cache, into, program)
			if err != nil {
				return err
			}
			return importInto(ctx, o, into, made)
		},
	}
}

// labImages makes the images, with layers in the directory into.
func labImages(dir cache.Dir, into, pause string) ([]*images.Image, error) {
	return makeImages(into, []imageSpec{
		{
			reference: config.PauseImage, config: v1.Config{Entrypoint: []string{"/pause"}},
			entries: []archive.Entry{{Path: "/pause", Source: pause}},
		},
		{
			reference: config.CoreDNSImage, config: v1.Config{Entrypoint: []string{"/coredns"}},
			entries: []archive.Entry{{Path: "/coredns", Source: filepath.Join(dir.Bin(), "coredns")}},
		},
		agnhostImage(dir),
		{reference: config.BaseImage, base: dir.ImageTar(runtime.GOARCH)},
	})
}

// agnhostImage is Kubernetes' test image on the nodes' root file system.
func agnhostImage(dir cache.Dir) imageSpec {
	return imageSpec{
		reference: config.AgnhostImage, base: dir.NodeTar(),
		entries: []archive.Entry{
			{Path: "/agnhost", Source: filepath.Join(dir.Bin(), "agnhost")},
			{Path: "/agnhost-2", Link: "agnhost"},
			{Path: "/uploads"},
		},
		config: v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{"PATH=" + machine.Path}},
	}
}

// imageSpec is an image to make.
type imageSpec struct {
	reference string
	base      string // archive of layer 1, if any
	entries   []archive.Entry
	config    v1.Config
}

// makeImages makes images with layers in the directory into.
func makeImages(into string, wanted []imageSpec) ([]*images.Image, error) {
	out := make([]*images.Image, 0, len(wanted))
	bases := map[string]*archive.Layer{} // hashed once
	for i, w := range wanted {
		var layers []*archive.Layer
		if w.base != "" && bases[w.base] == nil {
			layer, err := archive.TarLayer(w.base)
			if err != nil {
				return nil, err
			}
			bases[w.base] = layer
		}
		if w.base != "" {
			layers = append(layers, bases[w.base])
		}
		if w.entries != nil {
			layer, err := archive.WriteLayer(filepath.Join(into, fmt.Sprintf("layer-%d.tar", i)), w.entries)
			if err != nil {
				return nil, err
			}
			layers = append(layers, layer)
		}
		img, err := archive.Image(w.config, layers...)
		if err != nil {
			return nil, fmt.Errorf("make image %s: %w", w.reference, err)
		}
		named, err := images.FromImage(w.reference, img)
		if err != nil {
			return nil, err
		}
		out = append(out, named)
	}
	return out, nil
}

// importInto runs a temporary machine with only containerd, whose state directory is <into>/containerd, and imports the images
// there.
func importInto(ctx context.Context, o Options, into string, made []*images.Image) (err error) {
	spec := machine.Spec{
		Name: "images", Netns: "/proc/thread-self/ns/net", Base: o.Cache.Node(), Dir: filepath.Join(into, "machine"),
		Binds: []machine.Bind{
			{Source: filepath.Join(into, "containerd"), Target: "/var/lib/containerd"},
			{Source: filepath.Dir(o.Cache.Log("")), Target: "/var/log"},
		},
		Programs: []machine.Program{{Name: "containerd", Args: []string{"/usr/bin/containerd", "--config", config.ContainerdFile}}},
	}
	if err := os.MkdirAll(spec.Binds[0].Source, 0o711); err != nil {
		return fmt.Errorf("make containerd's directory: %w", err)
	}
	if err := machine.WriteFile(filepath.Join(spec.Upper(), config.ContainerdFile), config.Containerd(), 0o644); err != nil {
		return err
	}
	init, err := machine.Start(o.Lab, spec, o.Cache.Log("containerd"))
	if err != nil {
		return err
	}
	defer func() {
		if killed := init.Kill(); err == nil {
			err = killed
		}
	}()
	if err := init.AwaitSocket(ctx, config.ContainerdSocket); err != nil {
		return fmt.Errorf("wait for containerd: %w (log: %s)", err, o.Cache.Log("containerd"))
	}
	_, err = images.Store{Machine: init, Dir: spec.Binds[0].Source}.Import(ctx, made)
	return err
}
