// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cache stores artifacts that are built once and used by every lab, image build and test: programs, root file systems,
// images. The directory lies outside of the repository, in $KILN_CACHE, $XDG_CACHE_HOME/kiln or $HOME/.cache/kiln.
package cache

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/hack/lab/progress"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// Dir is the cache's directory.
type Dir string

// Open returns the cache's directory and creates it if it does not exist.
func Open() (Dir, error) {
	dir, err := prepared.Dir()
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w", err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "stamps"), filepath.Join(dir, "logs")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", fmt.Errorf("make the cache directory: %w", err)
		}
	}
	return Dir(dir), nil
}

// Path is the path of a file or directory in the cache.
func (d Dir) Path(name string) string { return filepath.Join(string(d), name) }

// Bin is the directory of the programs: Kubernetes' own, etcd, coredns and agnhost, all static.
func (d Dir) Bin() string { return d.Path("bin") }

// ImageTar is the archive of the Debian root file system with OVN and Open vSwitch, layer 1 of Kiln's image for an architecture. The directory
// prepared.ImageRoot has its files.
func (d Dir) ImageTar(architecture string) string {
	return d.Path(prepared.ImageRoot(architecture) + ".tar")
}

// Node is the unpacked root file system of the lab's nodes and of its test image.
func (d Dir) Node() string { return d.Path("node") }

// NodeTar is the archive of Node.
func (d Dir) NodeTar() string { return d.Path("node.tar") }

// Containerd is a state directory of containerd with the lab's images. Each node starts with a copy.
func (d Dir) Containerd() string { return d.Path("containerd") }

// KernelFile and DiskFile are the paths, in the cache, of the kernel and the disk of a lab in User Mode Linux (package guest).
const (
	KernelFile = "kernel/linux"
	DiskFile   = "kernel/disk"
)

func (d Dir) stamp(artifact string) string { return filepath.Join(string(d), "stamps", artifact) }

// Log is the log file of an artifact's build.
func (d Dir) Log(artifact string) string { return filepath.Join(string(d), "logs", artifact+".log") }

// Key returns the hash of the inputs from which the artifact in the cache was built.
func (d Dir) Key(artifact string) (string, error) {
	raw, err := os.ReadFile(d.stamp(artifact))
	if err != nil {
		return "", fmt.Errorf("read the stamp of %s (run: make prepare): %w", artifact, err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// Lock waits for an exclusive lock on the cache. Other processes cannot change the cache until the returned function is called.
func (d Dir) Lock() (unlock func(), err error) {
	f, err := os.OpenFile(d.Path(".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the cache's lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// Artifact describes something in the cache and how to build it.
type Artifact struct {
	// Name is the file name of the stamp and the log; Title is the text of the progress report.
	Name, Title string
	// Outputs are the paths of the artifact in the cache.
	Outputs []string
	// Inputs returns everything that the outcome depends on.
	Inputs func() ([]string, error)
	// InUse returns the reason why outdated outputs must stay for now because something uses them, or "". It may be nil.
	InUse func() (string, error)
	// Build writes the outputs below into, a directory on the cache's file system, under their names in the cache.
	Build func(ctx context.Context, into string) error
}

// Ensure builds the artifact unless the cache has it, built from the same inputs. It replaces the outputs only after the whole
// build succeeded.
func (d Dir) Ensure(ctx context.Context, report *progress.Reporter, a Artifact) error {
	inputs, err := a.Inputs()
	if err != nil {
		return fmt.Errorf("find out what %s is made from: %w", a.Name, err)
	}
	key := hash(inputs)
	if d.fresh(a, key) {
		return nil
	}
	if keep, err := d.inUse(a); err != nil {
		return err
	} else if keep != "" {
		report.Say("      %s is out of date and stays: %s", a.Name, keep)
		return nil
	}
	return report.Step(a.Title, func() error {
		into, err := os.MkdirTemp(string(d), ".tmp-"+a.Name+"-")
		if err != nil {
			return fmt.Errorf("make a directory to build in: %w", err)
		}
		defer os.RemoveAll(into)
		if err := a.Build(ctx, into); err != nil {
			return err
		}
		return d.install(a, key, into)
	})
}

func (d Dir) inUse(a Artifact) (string, error) {
	if a.InUse == nil || !d.complete(a) {
		return "", nil
	}
	return a.InUse()
}

func (d Dir) fresh(a Artifact, key string) bool {
	have, err := d.Key(a.Name)
	return err == nil && have == key && d.complete(a)
}

func (d Dir) complete(a Artifact) bool {
	for _, output := range a.Outputs {
		if _, err := os.Lstat(d.Path(output)); err != nil {
			return false
		}
	}
	return true
}

// install moves outputs to their places. It removes the stamp first and writes it last, so that a crash in between leaves the
// artifact "not built".
func (d Dir) install(a Artifact, key, from string) error {
	if err := os.Remove(d.stamp(a.Name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the stamp of %s: %w", a.Name, err)
	}
	for _, output := range a.Outputs {
		target := d.Path(output)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("make a directory of the cache: %w", err)
		}
		old := filepath.Join(from, "old")
		if err := os.Rename(target, old); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("move the old %s away: %w", output, err)
		}
		if err := os.Rename(filepath.Join(from, output), target); err != nil {
			return fmt.Errorf("put %s in place: %w", output, err)
		}
		if err := os.RemoveAll(old); err != nil {
			return fmt.Errorf("remove the old %s: %w", output, err)
		}
	}
	return os.WriteFile(d.stamp(a.Name), []byte(key+"\n"), 0o644)
}

func hash(inputs []string) string {
	h := sha256.New()
	for _, in := range inputs {
		fmt.Fprintf(h, "%d:%s\n", len(in), in)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}
