// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package prepare fills the cache: programs, root file systems and the images that every node starts with.
package prepare

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

// Options are the inputs of Run and of the other functions that fill the cache.
type Options struct {
	Cache  cache.Dir
	Source string // the repository's root directory
	Report *progress.Reporter
	// Lab is the lab's own program, which runs the temporary machine that imports the images.
	Lab string
	// Extra are the purposes whose host packages are installed as well: ForRace, ForImage.
	Extra []string
}

// Lab builds the parts of the cache that a lab needs, where they are missing or out of date. With kubeProxy, kube-proxy is one of them. It is fast
// when there are none.
func Lab(ctx context.Context, o Options, kubeProxy bool) error {
	return ensure(ctx, o, lab(o, kubeProxy)...)
}

// Run is Lab, and builds what only tests need as well: kube-proxy and Prometheus.
func Run(ctx context.Context, o Options) error {
	return ensure(ctx, o, append(lab(o, true), lanes{{prometheus(o)}})...)
}

func lab(o Options, withKubeProxy bool) []lanes {
	programs := []cache.Artifact{kubernetes(o)}
	if withKubeProxy {
		programs = append(programs, kubeProxy(o))
	}
	return []lanes{{programs, {imageRootfs(o, runtime.GOARCH), nodeRootfs(o), dnsmasq(o)}}, {{nodeImages(o)}}}
}

// HostPackages only installs the host packages that are missing.
func HostPackages(ctx context.Context, o Options) error { return ensure(ctx, o) }

// ImageRootfs makes only the root file systems that are layer 1 of Kiln's image, for the given architectures.
func ImageRootfs(ctx context.Context, o Options, architectures ...string) error {
	artifacts := make([]cache.Artifact, 0, len(architectures))
	for _, architecture := range architectures {
		artifacts = append(artifacts, imageRootfs(o, architecture))
	}
	return ensure(ctx, o, lanes{artifacts})
}

// lanes are built side by side, and the artifacts of one lane in turn. Downloads and packages of Debian wait for the network and the disk; compilers do not.
type lanes [][]cache.Artifact

// ensure prepares the host, and builds stages in turn.
func ensure(ctx context.Context, o Options, stages ...lanes) error {
	unlock, err := o.Cache.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	for _, step := range []func() error{
		func() error { return checkHost(ctx, o) },
		func() error { return installHostPackages(ctx, o) },
		func() error { return useHostPath(ctx, o) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	for _, stage := range stages {
		if err := stage.build(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// build builds the lanes. The first error ends all of them.
func (l lanes) build(ctx context.Context, o Options) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, artifacts := range l {
		group.Go(func() error {
			for _, a := range artifacts {
				if err := o.Cache.Ensure(ctx, o.Report, a); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// Source returns the repository's root directory: the working directory or the nearest parent with Kiln's go.mod.
func Source() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		raw, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(raw, []byte("module github.com/kiln-net/kiln\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("not inside the repository of Kiln: no go.mod of github.com/kiln-net/kiln above the working directory")
		}
	}
}

// run runs a program with its output in a log, and names the log in its error.
func run(ctx context.Context, log, dir string, env []string, program string, args ...string) error {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	fmt.Fprintf(out, "+ %s\n", cmd)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w (log: %s)", program, err, log)
	}
	return nil
}
