// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// builderSuite is the Debian release whose compiler and C library build the kernel: the oldest one that the lab runs on, because the kernel is
// linked with the C library of the host.
const builderSuite = "bookworm"

// kernelPackages are the packages that build the kernel. The source is the newest kernel in the backports of the nodes' release.
var kernelPackages = []string{
	"linux-source/" + Suite + "-backports", "bc", "bison", "flex", "gcc", "libc6-dev", "libelf-dev", "m4", "make", "xz-utils",
}

// kernelOptions are the options of the kernel, in the format of the kernel's merge_config.sh, on top of x86_64_defconfig of UML.
//
//go:embed kernel.config
var kernelOptions string

// buildKernel runs in a root file system of kernelPackages, with the options in the file /options. It fails if the kernel does not have one
// of the options.
const buildKernel = `set -eu
mkdir /build && cd /build
tar --extract --strip-components=1 --file="$(ls /usr/src/linux-source-*.tar.xz)"
make ARCH=um x86_64_defconfig
scripts/kconfig/merge_config.sh -m .config /options
make ARCH=um olddefconfig
grep '=y$' /options | while read -r option; do grep -qx "$option" .config || { echo "the kernel has no $option" >&2; exit 1; }; done
make ARCH=um -j"$(nproc)" linux
strip --strip-debug linux
`

// Kernel makes the kernel and the disk of a lab in User Mode Linux. Lab must have succeeded before.
func Kernel(ctx context.Context, o Options) error {
	return ensure(ctx, o, lanes{{kubeProxy(o), prometheus(o), kernel(o), guestDisk(o)}})
}

// kernel is one executable file: a kernel for User Mode Linux, without modules.
func kernel(o Options) cache.Artifact {
	return cache.Artifact{
		Name: "kernel", Title: "build a kernel for User Mode Linux, ten minutes or more", Outputs: []string{cache.KernelFile},
		Inputs: func() ([]string, error) {
			return append(slices.Clone(kernelPackages), builderSuite, kernelOptions, buildKernel), nil
		},
		Build: func(ctx context.Context, into string) error {
			log, root := o.Cache.Log("kernel"), filepath.Join(into, "root")
			args := []string{"--mode=root", "--variant=minbase", "--keyring=" + keyring, "--include=" + strings.Join(kernelPackages, ",")}
			for _, path := range unwanted {
				args = append(args, "--dpkgopt=path-exclude="+path)
			}
			args = append(args, builderSuite, root)
			source := "http://deb.debian.org/debian"
			if other := mirror(); other != nil {
				source = other[0]
			}
			for _, suite := range []string{builderSuite, Suite + "-backports"} {
				args = append(args, "deb "+source+" "+suite+" main")
			}
			if err := run(ctx, log, into, nil, "mmdebstrap", args...); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(root, "options"), []byte(kernelOptions), 0o644); err != nil {
				return fmt.Errorf("write the kernel's options: %w", err)
			}
			// The kernel's makefiles must not see the flags of the make that runs this program.
			environment := []string{"MAKEFLAGS=", "MAKELEVEL=", "MFLAGS=", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
			if err := run(ctx, log, into, environment, "chroot", root, "/bin/sh", "-c", buildKernel); err != nil {
				return err
			}
			return place(filepath.Join(root, "build", "linux"), filepath.Join(into, cache.KernelFile))
		},
	}
}

func place(from, to string) error {
	err := os.MkdirAll(filepath.Dir(to), 0o755)
	if err = errors.Join(err, os.Rename(from, to)); err != nil {
		return fmt.Errorf("put %s in place: %w", filepath.Base(to), err)
	}
	return nil
}

// onDisk are the artifacts on the guest's disk, by their paths in the cache.
var onDisk = []string{"bin", "containerd", "node", prepared.Root, "stamps"}

// diskSize is the size of the guest's disk. The file is sparse.
const diskSize = "24G"

// guestDisk is an ext4 file system with a copy of the cache in the directory "cache". Machines, containers and images need a disk file
// system, which a host directory (hostfs) is not.
func guestDisk(o Options) cache.Artifact {
	return cache.Artifact{
		Name: "guest-disk", Title: "make the disk of the lab's guest, a minute", Outputs: []string{cache.DiskFile},
		Inputs: func() ([]string, error) {
			inputs := append([]string{diskSize}, onDisk...)
			for _, artifact := range []string{"kubernetes", "kube-proxy", "prometheus", prepared.Root, "node", "containerd"} {
				key, err := o.Cache.Key(artifact)
				if err != nil {
					return nil, err
				}
				inputs = append(inputs, key)
			}
			return inputs, nil
		},
		Build: func(ctx context.Context, into string) error {
			log, stage := o.Cache.Log("guest-disk"), filepath.Join(into, "stage")
			if err := os.MkdirAll(filepath.Join(stage, "cache"), 0o755); err != nil {
				return fmt.Errorf("make a directory to copy the cache to: %w", err)
			}
			for _, name := range onDisk {
				if err := run(ctx, log, into, nil, "cp", "--archive", "--link", o.Cache.Path(name), filepath.Join(stage, "cache")); err != nil {
					return err
				}
			}
			image := filepath.Join(into, "disk")
			err := run(ctx, log, into, nil, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", stage, image, diskSize)
			if err != nil {
				return err
			}
			return place(image, filepath.Join(into, cache.DiskFile))
		},
	}
}
