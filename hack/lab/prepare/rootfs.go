// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/fabric"
)

// Suite is the Debian release of the image and the nodes.
const Suite = "trixie"

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// imagePackages make layer 1 of Kiln's image.
var imagePackages = []string{
	"ovn-central", "ovn-host", "openvswitch-switch", "iproute2", "nftables", "procps", "ca-certificates", "conntrack",
	"ethtool", "iputils-ping",
}

// nodePackages are what nodes and the test image have beyond it: the container runtime, and tools that tests call.
var nodePackages = []string{
	"containerd", "runc", "iptables", "kmod", "mount", "curl", "bind9-dnsutils", "netcat-openbsd", "iperf", "tcpdump", "socat",
	"isc-dhcp-client",
}

// unwanted files of Debian's packages.
var unwanted = []string{"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"}

// foreign directories hold what Debian's own set-up of OVN and Open vSwitch made. A node has their programs only: what runs on
// it comes in containers, which find these directories empty.
var foreign = []string{"/etc/openvswitch", "/etc/ovn", "/var/lib/openvswitch", "/var/lib/ovn", "/var/log/openvswitch", "/var/log/ovn"}

func rootFileSystems(o Options) []cache.Artifact {
	return []cache.Artifact{imageRootfs(o), nodeRootfs(o)}
}

func imageRootfs(o Options) cache.Artifact {
	return rootfs(o, "rootfs", "make the Debian "+Suite+" root file system of the image", imagePackages, nil)
}

func nodeRootfs(o Options) cache.Artifact {
	packages := append(append([]string{}, imagePackages...), nodePackages...)
	options := make([]string, 0, len(unwanted))
	for _, path := range unwanted {
		options = append(options, "--dpkgopt=path-exclude="+path)
	}
	for _, path := range foreign {
		options = append(options, `--customize-hook=rm -rf "$1"`+path)
	}
	a := rootfs(o, "node", "make the Debian "+Suite+" root file system of the nodes", packages, options)
	a.InUse = standing
	return a
}

// standing says whether there are nodes, whose root file system may not be taken from below them.
func standing() (string, error) {
	left, err := fabric.Leftovers()
	if err != nil || len(left) == 0 {
		return "", err
	}
	return "the nodes of a lab stand on it (go run ./hack/lab down)", nil
}

// rootfs is an archive <name>.tar made by mmdebstrap and, unpacked, the directory <name>.
func rootfs(o Options, name, title string, packages, options []string) cache.Artifact {
	return cache.Artifact{
		Name: name, Title: title, Outputs: []string{name + ".tar", name},
		Inputs: func() ([]string, error) {
			return append(append([]string{Suite}, packages...), options...), nil
		},
		Build: func(ctx context.Context, into string) error {
			archive, dir := filepath.Join(into, name+".tar"), filepath.Join(into, name)
			args := append([]string{
				"--mode=root", "--variant=minbase", "--keyring=" + keyring, "--include=" + strings.Join(packages, ","),
			}, options...)
			args = append(append(args, Suite, archive), mirror()...)
			if err := run(ctx, o.Cache.Log(name), into, nil, "mmdebstrap", args...); err != nil {
				return err
			}
			return unpack(ctx, o.Cache.Log(name), archive, dir)
		},
	}
}

// mirror is mmdebstrap's last argument, if any: KILN_DEBIAN_MIRROR names another mirror than Debian's own.
func mirror() []string {
	if mirror := os.Getenv("KILN_DEBIAN_MIRROR"); mirror != "" {
		return []string{mirror}
	}
	return nil
}

func unpack(ctx context.Context, log, archive, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make a directory to unpack in: %w", err)
	}
	return run(ctx, log, dir, nil, "tar", "--extract", "--preserve-permissions", "--numeric-owner", "--xattrs", "--xattrs-include=*",
		"--file="+archive)
}

// fakeTime is what tests give a database server a clock of its own with.
const fakeTime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"

// hostPackages installs what prepare itself and tests call. Nothing else of the lab comes from the host.
func hostPackages(ctx context.Context, o Options) error {
	missing := missingPackages()
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("the lab needs the packages %s, and only on Debian and its kin can it install them itself: "+
			"install mmdebstrap and Debian's archive keyring at %s", strings.Join(missing, ", "), keyring)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("the lab needs the packages %s: run as root, or install them", strings.Join(missing, ", "))
	}
	return o.Report.Step("install the Debian packages "+strings.Join(missing, ", "), func() error {
		log := o.Cache.Log("apt")
		env := []string{"DEBIAN_FRONTEND=noninteractive"}
		if err := run(ctx, log, "/", env, "apt-get", "update"); err != nil {
			return err
		}
		return run(ctx, log, "/", env, "apt-get", append([]string{"install", "--yes", "--no-install-recommends"}, missing...)...)
	})
}

func missingPackages() []string {
	var missing []string
	for program, pkg := range map[string]string{"mmdebstrap": "mmdebstrap", "gpgv": "gpgv", "tar": "tar"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	for file, pkg := range map[string]string{keyring: "debian-archive-keyring", fakeTime: "libfaketime"} {
		if _, err := os.Stat(file); err != nil {
			missing = append(missing, pkg)
		}
	}
	slices.Sort(missing)
	return missing
}
