// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/config"
	"github.com/kiln-net/kiln/hack/lab/fabric"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// spec returns the parts that all machines share: the root file system of nodes, the programs, and the logs in a directory of the
// host.
func (d stateDir) spec(c cache.Dir, name string, programs []machine.Program) machine.Spec {
	return machine.Spec{
		Name: name, Netns: fabric.NetnsPath(name), Base: c.Node(), Dir: d.machine(name), Programs: programs,
		Binds: []machine.Bind{
			{Source: c.Bin(), Target: "/usr/local/bin", ReadOnly: true},
			{Source: d.logs(name), Target: "/var/log"},
		},
	}
}

// startNode starts a node with a network namespace of its own. It keeps existing files, which a restart of the host leaves.
func (d stateDir) startNode(ctx context.Context, c cache.Dir, top topology.Topology, n topology.Node, a authorities) (machine.Process, error) {
	spec := d.spec(c, n.Name, config.Programs(top, n))
	// containerd's snapshots need a disk file system below them, not an overlay; volumes and databases are better off on one, too.
	for _, path := range []string{"containerd", "kubelet", "etcd"} {
		spec.Binds = append(spec.Binds, machine.Bind{Source: filepath.Join(spec.Dir, path), Target: "/var/lib/" + path})
		if path == "containerd" {
			continue
		}
		if err := os.MkdirAll(filepath.Join(spec.Dir, path), 0o700); err != nil {
			return machine.Process{}, fmt.Errorf("make a directory of %s: %w", n.Name, err)
		}
	}
	if err := cloneImages(ctx, c.Containerd(), d.containerd(n.Name)); err != nil {
		return machine.Process{}, err
	}
	files, err := a.nodeFiles(top, n)
	if err != nil {
		return machine.Process{}, err
	}
	for path, content := range files {
		if err := machine.WriteFile(filepath.Join(spec.Upper(), path), content, 0o600); err != nil {
			return machine.Process{}, err
		}
	}
	for _, path := range []string{config.CNIConfDir, config.CNIBinDir} {
		if err := os.MkdirAll(filepath.Join(spec.Upper(), path), 0o755); err != nil {
			return machine.Process{}, fmt.Errorf("make a directory of %s: %w", n.Name, err)
		}
	}
	if err := makeCgroup(config.Cgroup(n)); err != nil {
		return machine.Process{}, err
	}
	if err := fabric.Connect(n, top); err != nil {
		return machine.Process{}, err
	}
	return machine.Start(d.program(), spec, d.log(n.Name, "init"))
}

// startWorld starts the router or the outside host.
func (d stateDir) startWorld(c cache.Dir, name string, programs []machine.Program) (machine.Process, error) {
	return machine.Start(d.program(), d.spec(c, name, programs), d.log(name, "init"))
}

// cloneImages copies containerd's state directory. Content and unpacked layers are never modified after they are written, so hard
// links suffice where both directories are on one file system. Databases are copied.
func cloneImages(ctx context.Context, from, to string) error {
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		return err // exists already, or another error
	}
	tmp := to + ".tmp"
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(filepath.Dir(tmp), 0o755)); err != nil {
		return fmt.Errorf("make containerd's directory: %w", err)
	}
	if err := copyTree(ctx, from, tmp, "--link"); err != nil {
		if err := errors.Join(os.RemoveAll(tmp), copyTree(ctx, from, tmp, "--reflink=auto")); err != nil {
			return err
		}
	}
	databases, err := filepath.Glob(filepath.Join(tmp, "*", "*.db"))
	if err != nil {
		return fmt.Errorf("list containerd's databases: %w", err)
	}
	for _, path := range databases {
		if err := unlink(path); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, to); err != nil {
		return fmt.Errorf("put containerd's directory in place: %w", err)
	}
	return nil
}

func copyTree(ctx context.Context, from, to, how string) error {
	out, err := exec.CommandContext(ctx, "cp", "--archive", how, from, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// unlink replaces a hard link by a copy with its own inode.
func unlink(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("copy a database: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("copy a database: %w", err)
	}
	return machine.WriteFile(path, content, 0o600)
}
