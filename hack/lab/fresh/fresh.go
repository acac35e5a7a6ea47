// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fresh runs commands in a clone of this repository on an unprepared machine: a minimal Debian with make and CA
// certificates, the host's Go, and empty caches. The machine shares the host's network, so no lab may be up on the host.
package fresh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/fabric"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

// Options describe the machine and the command.
type Options struct {
	Cache  cache.Dir
	Source string // the repository, whose HEAD is cloned
	Report *progress.Reporter
	Lab    string // the lab's own program
	// Suite is the Debian release: bookworm or trixie.
	Suite string
	// Dir is the machine's directory, on a disk file system. It is removed at the end.
	Dir string
	// GoCaches shares the host's module and build caches, which saves downloads and compilation.
	GoCaches bool
	// Command is a shell command, run in the clone.
	Command string
	Out     io.Writer
}

// clone is the repository's path in the machine.
const clone = "/root/kiln"

// Run makes the machine, runs the command there and removes the machine. A command that fails returns an *exec.ExitError.
func Run(ctx context.Context, o Options) (err error) {
	left, err := fabric.Leftovers()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return errors.New("a lab is up on this host, whose network the machine shares: run `go run ./hack/lab down` first")
	}
	if err := prepare.FreshRootfs(ctx, prepare.Options{Cache: o.Cache, Source: o.Source, Report: o.Report}, o.Suite); err != nil {
		return err
	}
	if err := os.RemoveAll(o.Dir); err != nil {
		return fmt.Errorf("remove the machine of an earlier run: %w", err)
	}
	spec, err := o.spec()
	if err != nil {
		return err
	}
	if err := o.fill(ctx, spec); err != nil {
		return err
	}
	init, err := machine.Start(o.Lab, spec, filepath.Join(o.Dir, "init.log"))
	if err != nil {
		return err
	}
	defer func() {
		killed := init.Kill()
		if killed == nil {
			killed = os.RemoveAll(o.Dir)
		}
		err = errors.Join(err, killed)
	}()
	resolver, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return fmt.Errorf("read the resolver's configuration: %w", err)
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/etc/resolv.conf", init.PID), resolver, 0o644); err != nil {
		return fmt.Errorf("give the machine the resolver's configuration: %w", err)
	}
	script := "export PATH=$PATH:/usr/local/go/bin; cd " + clone + " && " + o.Command
	return init.Run(ctx, machine.Command{Args: []string{"/bin/sh", "-c", script}, Stdout: o.Out, Stderr: o.Out})
}

func (o Options) spec() (machine.Spec, error) {
	goroot, err := goEnv("GOROOT")
	if err != nil {
		return machine.Spec{}, err
	}
	spec := machine.Spec{
		Name: "fresh-" + o.Suite, Netns: "/proc/thread-self/ns/net", Base: o.Cache.Path(prepare.FreshName(o.Suite)), Dir: o.Dir,
		Binds: []machine.Bind{
			{Source: goroot, Target: "/usr/local/go", ReadOnly: true},
			{Source: filepath.Join(o.Dir, "cache"), Target: "/root/.cache"}, // an overlay cannot hold this or the next one
			{Source: filepath.Join(o.Dir, "state"), Target: "/var/lib/kiln-lab"},
		},
	}
	if !o.GoCaches {
		return spec, nil
	}
	for variable, target := range map[string]string{"GOMODCACHE": "/root/go/pkg/mod", "GOCACHE": "/root/.cache/go-build"} {
		dir, err := goEnv(variable)
		if err != nil {
			return machine.Spec{}, err
		}
		spec.Binds = append(spec.Binds, machine.Bind{Source: dir, Target: target})
	}
	return spec, nil
}

// fill makes the machine's directories, copies the host's trusted certificates, writes a hosts file, and clones the repository.
func (o Options) fill(ctx context.Context, spec machine.Spec) error {
	for _, bind := range spec.Binds {
		if err := os.MkdirAll(bind.Source, 0o755); err != nil {
			return fmt.Errorf("make a directory of the machine: %w", err)
		}
	}
	const trusted = "/etc/ssl/certs/ca-certificates.crt"
	bundle, err := os.ReadFile(trusted)
	if err != nil {
		return fmt.Errorf("read the certificates that this host trusts: %w", err)
	}
	if err := machine.WriteFile(filepath.Join(spec.Upper(), trusted), bundle, 0o644); err != nil {
		return err
	}
	hosts := "127.0.0.1\tlocalhost\n127.0.1.1\t" + spec.Name + "\n::1\tlocalhost ip6-localhost ip6-loopback\n" // Debian's installer writes it, no package does
	if err := machine.WriteFile(filepath.Join(spec.Upper(), "/etc/hosts"), []byte(hosts), 0o644); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "git", "clone", "--quiet", "--no-hardlinks", o.Source, filepath.Join(spec.Upper(), clone)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("clone the repository: %w: %s", err, out)
	}
	return nil
}

func goEnv(variable string) (string, error) {
	out, err := exec.Command("go", "env", variable).Output()
	if err != nil {
		return "", fmt.Errorf("read Go's %s: %w", variable, err)
	}
	return strings.TrimSpace(string(out)), nil
}
