// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command image makes Kiln's container image, without a registry or a container engine: the Debian root file system with OVN
// and Open vSwitch from the lab's cache, and our programs on top of it. The outcome is a docker-archive, for `lab load`,
// `docker load` or any other tool.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/image/archive"
	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

// programs lists the packages that go into the image, and their paths there.
var programs = []struct{ pkg, path string }{
	{"github.com/kiln-net/kiln/cmd/kiln", "/usr/bin/kiln"},
	{"github.com/kiln-net/kiln/cmd/kube-ovn", "/opt/kiln/cni/kube-ovn"},
	{"github.com/containernetworking/plugins/plugins/main/loopback", "/opt/kiln/cni/loopback"},
	{"github.com/containernetworking/plugins/plugins/meta/portmap", "/opt/kiln/cni/portmap"},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	b := build{report: progress.New(os.Stderr)}
	cmd := &cobra.Command{
		Use:           "image",
		Short:         "Make Kiln's container image as a docker-archive",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&b.output, "output", "_output/kiln.tar", "file to write; programs are built in its directory")
	cmd.Flags().StringVar(&b.tag, "tag", "kiln.local/kiln:dev", "name of the image")
	return cmd
}

// build is one run of the command.
type build struct {
	output, tag string
	report      *progress.Reporter
}

func (b build) run(ctx context.Context) error {
	source, err := prepare.Source()
	if err != nil {
		return err
	}
	dir, err := cache.Open()
	if err != nil {
		return err
	}
	if err := prepare.Rootfs(ctx, prepare.Options{Cache: dir, Source: source, Report: b.report}); err != nil {
		return err
	}
	output, err := filepath.Abs(b.output)
	if err != nil {
		return fmt.Errorf("find the output directory: %w", err)
	}
	work := filepath.Join(filepath.Dir(output), "image")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return fmt.Errorf("make the output directory: %w", err)
	}
	if err := b.report.Step("build the image's programs", func() error { return compile(ctx, source, work, b.version()) }); err != nil {
		return err
	}
	return b.report.Step("write image "+b.tag, func() error { return b.write(dir, work, output) })
}

// versionVariable is the variable that holds the version which the programs report; the linker sets it.
const versionVariable = "github.com/kiln-net/kiln/internal/version.Kiln"

// version is the image's tag.
func (b build) version() string {
	name := b.tag[strings.LastIndex(b.tag, "/")+1:]
	_, tag, found := strings.Cut(name, ":")
	if !found {
		return "latest"
	}
	return tag
}

// compile leaves it to go build to decide which programs are out of date. The outcome depends only on the sources and the version:
// not on paths, version control or a C compiler.
func compile(ctx context.Context, source, into, version string) error {
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X " + versionVariable + "=" + version, "-o", into + "/"}
	for _, p := range programs {
		args = append(args, p.pkg)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run go build: %w", err)
	}
	return nil
}

// write assembles the image from two layers: Debian's, the same for every build, and Kiln's programs.
func (b build) write(dir cache.Dir, work, output string) error {
	debian, err := archive.TarLayer(dir.RootfsTar())
	if err != nil {
		return err
	}
	entries := make([]archive.Entry, 0, len(programs))
	for _, p := range programs {
		entries = append(entries, archive.Entry{Path: p.path, Source: filepath.Join(work, filepath.Base(p.pkg))})
	}
	ours, err := archive.WriteLayer(filepath.Join(work, "layer.tar"), entries)
	if err != nil {
		return err
	}
	img, err := archive.Image(v1.Config{
		Entrypoint: []string{"/usr/bin/kiln"},
		Env:        []string{"PATH=" + machine.Path},
	}, debian, ours)
	if err != nil {
		return err
	}
	written, err := archive.Write(output, b.tag, img)
	if err == nil && !written {
		b.report.Say("      %s holds it already", output)
	}
	return err
}
