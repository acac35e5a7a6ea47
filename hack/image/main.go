// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command image makes Kiln's container image, without a container engine: a root file system of Debian packages with OVN and Open vSwitch, and our
// programs on top of it. The result is a docker-archive of this machine's architecture, for `lab load` and `docker load`, or an image for
// several architectures in an OCI layout or a registry.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/image/archive"
	"github.com/kiln-net/kiln/hack/image/debian"
	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	b := &build{programs: programs, report: progress.New(os.Stderr)}
	cmd := &cobra.Command{
		Use:           "image",
		Short:         "Make Kiln's container image as a docker-archive for this machine's architecture",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return b.archive(cmd.Context()) },
	}
	cmd.PersistentFlags().StringVar(&b.output, "output", "_output/kiln.tar", "file to write; programs are built in its directory")
	cmd.PersistentFlags().StringVar(&b.tag, "tag", "kiln.local/kiln:dev", "name of the image")
	cmd.PersistentFlags().StringVar(&b.revision, "revision", "", "commit of the sources, for the image's labels")
	cmd.AddCommand(newLayoutCommand(b), newPushCommand(b), newLockCommand(b))
	return cmd
}

func newLayoutCommand(b *build) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "layout",
		Short: "Make the image of several architectures as an OCI layout in a tar archive",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return b.layout(cmd.Context()) },
	}
	b.platformFlag(cmd)
	return cmd
}

func newPushCommand(b *build) *cobra.Command {
	var from string
	var insecure bool
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Push the image of several architectures to the registry that --tag names",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return b.push(cmd.Context(), from, insecure) },
	}
	b.platformFlag(cmd)
	cmd.Flags().StringVar(&from, "from", "", "OCI layout in a tar archive to push, instead of a new build")
	cmd.Flags().BoolVar(&insecure, "insecure", false, "use plain HTTP if the registry has no TLS; registries at loopback and private addresses need no flag")
	return cmd
}

func newLockCommand(b *build) *cobra.Command {
	return &cobra.Command{
		Use:   "lock",
		Short: "Write the lock files with the versions that Debian's archive has now",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := prepare.Source()
			if err != nil {
				return err
			}
			for _, architecture := range debian.Architectures {
				err := b.report.Step("find the packages for "+architecture, func() error { return writeLock(cmd.Context(), source, architecture) })
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func writeLock(ctx context.Context, source, architecture string) error {
	packages, err := debian.Resolve(ctx, architecture, os.Stderr)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(source, debian.LockFile(architecture)), debian.FormatLock(packages), 0o644); err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	return nil
}

func (b *build) platformFlag(cmd *cobra.Command) {
	all := make([]string, 0, len(debian.Architectures))
	for _, architecture := range debian.Architectures {
		all = append(all, "linux/"+architecture)
	}
	cmd.Flags().StringSliceVar(&b.platforms, "platforms", all, "platforms of the image")
}

// architectures returns the architectures of the platforms.
func (b *build) architectures() ([]string, error) {
	var out []string
	for _, platform := range b.platforms {
		system, architecture, found := strings.Cut(platform, "/")
		if !found || system != "linux" || architecture == "" {
			return nil, fmt.Errorf("%q is no platform of the image: they have the form linux/amd64", platform)
		}
		out = append(out, architecture)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("name at least one platform")
	}
	return out, nil
}

// archive writes the docker-archive.
func (b *build) archive(ctx context.Context) error {
	if err := b.prepare(ctx, runtime.GOARCH); err != nil {
		return err
	}
	return b.report.Step("write image "+b.tag, func() error {
		layers, err := b.layers(ctx, runtime.GOARCH)
		if err != nil {
			return err
		}
		img, err := archive.Image(b.config(), layers...)
		if err != nil {
			return err
		}
		written, err := archive.Write(b.output, b.tag, img)
		if err == nil && !written {
			b.report.Say("      %s holds it already", b.output)
		}
		return err
	})
}

// prepare builds everything that layers needs.
func (b *build) prepare(ctx context.Context, architectures ...string) error {
	var err error
	if b.source, err = prepare.Source(); err != nil {
		return err
	}
	if b.cache, err = cache.Open(); err != nil {
		return err
	}
	if b.output, err = filepath.Abs(b.output); err != nil {
		return fmt.Errorf("find the output directory: %w", err)
	}
	if b.created, err = created(); err != nil {
		return err
	}
	if err := prepare.ImageRootfs(ctx, prepare.Options{Cache: b.cache, Source: b.source, Report: b.report}, architectures...); err != nil {
		return err
	}
	for _, architecture := range architectures {
		if err := os.MkdirAll(b.work(architecture), 0o755); err != nil {
			return fmt.Errorf("make the output directory: %w", err)
		}
		err := b.report.Step("build the image's programs for "+architecture, func() error { return b.compile(ctx, architecture) })
		if err != nil {
			return err
		}
	}
	return nil
}
