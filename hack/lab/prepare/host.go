// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/hack/image/debian"
)

const (
	// keyring verifies Debian's archive.
	keyring = debian.Keyring
	// fakeTime gives a database server a clock of its own (faketime(1)).
	fakeTime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
)

// hostPackage is a Debian package that the make targets use on the host.
type hostPackage struct {
	name string
	file string // a file of the package: the package is missing where this file is missing
	use  string
	only string // the purpose that needs it, if not every target does
}

// Purposes of packages that few targets need.
const (
	ForRace  = "race"  // make test-race
	ForImage = "image" // make test-image
)

// hostPackages is every Debian package that prepare, the lab, tests, benches and the demo use on the host, beyond Go, make and the packages
// that every Debian has (Essential: yes, Priority: required). Tests take nft, ip, ping and conntrack from the image's root file system
// (prepared.UseImagePrograms), and nodes have a root file system of their own. PATH enforces the list: see useHostPath.
var hostPackages = []hostPackage{
	{name: "ca-certificates", file: "/etc/ssl/certs/ca-certificates.crt", use: "Go modules over TLS"},
	{name: "debian-archive-keyring", file: keyring, use: "root file systems: the keys of Debian's archive"},
	{name: "git", file: "/usr/bin/git", use: "make verify, make bench-compare"},
	{name: "gpgv", file: "/usr/bin/gpgv", use: "root file systems: signatures of Debian's archive"},
	{name: "libfaketime", file: fakeTime, use: "tests: database servers with clocks of their own"},
	{name: "mmdebstrap", file: "/usr/bin/mmdebstrap", use: "root file systems"},
	{name: "gcc", file: "/usr/bin/gcc", use: "the race detector", only: ForRace},
	{name: "qemu-user", file: "/usr/bin/qemu-aarch64", use: "programs of the image for arm64", only: ForImage},
	{name: "libc6-dev", file: "/usr/include/stdlib.h", use: "the race detector", only: ForRace},
}

// checkHost returns an error that names what this machine lacks and no package can provide.
func checkHost(ctx context.Context, o Options) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", filepath.Join(o.Source, "hack/host/check-host"), "machine")
	cmd.Env = append(os.Environ(), "KILN_CACHE="+string(o.Cache))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("check this machine: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// installHostPackages installs the host packages that are missing.
func installHostPackages(ctx context.Context, o Options) error {
	missing := missingPackages(o.Extra)
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, ", ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("these Debian packages are missing: %s; this machine has no apt-get: install their programs yourself, and Debian's archive keyring at %s",
			list, keyring)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("these Debian packages are missing: %s; run as root, or install them", list)
	}
	return o.Report.Step("install the Debian packages "+list, func() error {
		log := o.Cache.Log("apt")
		env := []string{"DEBIAN_FRONTEND=noninteractive"}
		if err := run(ctx, log, "/", env, "apt-get", "update"); err != nil {
			return err
		}
		return run(ctx, log, "/", env, "apt-get", append([]string{"install", "--yes", "--no-install-recommends"}, missing...)...)
	})
}

func missingPackages(extra []string) []string {
	var missing []string
	for _, p := range hostPackages {
		if p.only != "" && !slices.Contains(extra, p.only) {
			continue
		}
		if _, err := os.Stat(p.file); err != nil {
			missing = append(missing, p.name)
		}
	}
	return missing
}

// useHostPath makes the directory of permitted programs (see permitted) and makes it the PATH of this process and its children. Tests
// run with the same PATH, so that a program that happens to be installed cannot hide a gap in hostPackages.
func useHostPath(ctx context.Context, o Options) error {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		o.Report.Say("      this machine has no dpkg: tests run with its own PATH, and programs that hostPackages lacks go unnoticed")
		return nil
	}
	programs, err := permitted(ctx)
	if err != nil {
		return err
	}
	dir := o.Cache.Path(HostPath)
	if err := linkPrograms(dir, programs); err != nil {
		return err
	}
	if err := os.Setenv("PATH", dir); err != nil {
		return fmt.Errorf("set PATH: %w", err)
	}
	return nil
}

// linkPrograms makes the links in dir equal to programs, by name. It keeps links that are right, since other runs may use the directory.
func linkPrograms(dir string, programs map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of programs: %w", err)
	}
	present, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the directory of programs: %w", err)
	}
	right := map[string]bool{}
	for _, entry := range present {
		link := filepath.Join(dir, entry.Name())
		if target, err := os.Readlink(link); err == nil && target == programs[entry.Name()] {
			right[entry.Name()] = true
		} else if err := os.Remove(link); err != nil {
			return fmt.Errorf("remove an outdated link: %w", err)
		}
	}
	for name, target := range programs {
		if right[name] {
			continue
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("link a program: %w", err)
		}
	}
	return nil
}
