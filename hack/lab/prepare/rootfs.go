// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/hack/image/debian"
	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/fabric"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// Suite is the Debian release of the image and the nodes.
const Suite = debian.Suite

// nodePackages are the packages of nodes and the test image: programs of OVN and Open vSwitch, the container runtime, and tools that tests call.
var nodePackages = []string{
	"ovn-central", "ovn-host", "openvswitch-switch", "iproute2", "nftables", "procps", "ca-certificates", "conntrack", "ethtool", "iputils-ping",
	"containerd", "runc", "iptables", "kmod", "mount", "curl", "bind9-dnsutils", "netcat-openbsd", "iperf", "tcpdump", "socat", "isc-dhcp-client",
}

// unwanted lists files of Debian's packages to leave out.
var unwanted = []string{"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"}

// foreign directories are created by Debian's packages of OVN and Open vSwitch. A node has only the programs of these packages. The
// daemons run in containers, and the containers must find these directories empty.
var foreign = []string{"/etc/openvswitch", "/etc/ovn", "/var/lib/openvswitch", "/var/lib/ovn", "/var/log/openvswitch", "/var/log/ovn"}

// imageRootfs is layer 1 of Kiln's image for an architecture, as an archive and unpacked.
func imageRootfs(o Options, architecture string) cache.Artifact {
	name := prepared.ImageRoot(architecture)
	return cache.Artifact{
		Name: name, Title: "make the root file system of the image for " + architecture, Outputs: []string{name + ".tar", name},
		Inputs: func() ([]string, error) { return debian.Inputs(architecture) },
		Build: func(ctx context.Context, into string) error {
			log, err := os.OpenFile(o.Cache.Log(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
			if err != nil {
				return fmt.Errorf("open log: %w", err)
			}
			defer log.Close()
			archive := filepath.Join(into, name+".tar")
			if err := debian.Build(ctx, architecture, archive, into, log); err != nil {
				return err
			}
			return unpack(ctx, o.Cache.Log(name), archive, filepath.Join(into, name))
		},
	}
}

func nodeRootfs(o Options) cache.Artifact {
	options := make([]string, 0, len(unwanted))
	for _, path := range unwanted {
		options = append(options, "--dpkgopt=path-exclude="+path)
	}
	for _, path := range foreign {
		options = append(options, `--customize-hook=rm -rf "$1"`+path)
	}
	a := rootfs(o, Suite, "node", "make the Debian "+Suite+" root file system of the nodes", nodePackages, options)
	a.InUse = standing
	return a
}

// freshPackages are the packages of a machine on which the README's two commands are tried, in addition to Debian's minimum and Go.
var freshPackages = []string{"make", "ca-certificates"}

// FreshName is the name, in the cache, of the root file system of an unprepared machine.
func FreshName(suite string) string { return "fresh-" + suite }

// FreshRootfs makes the root file system of an unprepared machine.
func FreshRootfs(ctx context.Context, o Options, suite string) error {
	return ensure(ctx, o, lanes{{rootfs(o, suite, FreshName(suite), "make a minimal Debian "+suite, freshPackages, nil)}})
}

// routerPackages are the BGP daemons with which `make bgp` tests kube-ovn-speaker.
var routerPackages = []string{"frr", "bird3", "iproute2", "mount"}

// RouterRootfs makes the root file system of the daemons of the router: the directory `router` of the cache.
func RouterRootfs(ctx context.Context, o Options) error {
	return ensure(ctx, o, lanes{{rootfs(o, Suite, "router", "make the Debian "+Suite+" root file system of the router's BGP daemons", routerPackages, nil)}})
}

// standing returns a reason to keep the nodes' root file system if a lab's nodes use it, otherwise "".
func standing() (string, error) {
	left, err := fabric.Leftovers()
	if err != nil || len(left) == 0 {
		return "", err
	}
	return "the nodes of a lab stand on it (go run ./hack/lab down)", nil
}

// rootfs is an archive <name>.tar made by mmdebstrap and, unpacked, the directory <name>.
func rootfs(o Options, suite, name, title string, packages, options []string) cache.Artifact {
	return cache.Artifact{
		Name: name, Title: title, Outputs: []string{name + ".tar", name},
		Inputs: func() ([]string, error) {
			return append(append([]string{suite}, packages...), options...), nil
		},
		Build: func(ctx context.Context, into string) error {
			archive, dir := filepath.Join(into, name+".tar"), filepath.Join(into, name)
			args := append([]string{
				"--mode=root", "--variant=minbase", "--keyring=" + keyring, "--include=" + strings.Join(packages, ","),
			}, options...)
			args = append(append(args, suite, archive), mirror()...)
			if err := run(ctx, o.Cache.Log(name), into, nil, "mmdebstrap", args...); err != nil {
				return err
			}
			return unpack(ctx, o.Cache.Log(name), archive, dir)
		},
	}
}

// fromPackage is an artifact of some files of a Debian package that is not installed anywhere. The map has their paths in the package by their
// paths in the cache.
func fromPackage(o Options, name, pkg string, files map[string]string) cache.Artifact {
	return cache.Artifact{
		Name: name, Title: "unpack Debian's " + pkg, Outputs: slices.Sorted(maps.Keys(files)),
		Inputs: func() ([]string, error) { return []string{Suite, pkg}, nil },
		Build: func(ctx context.Context, into string) error {
			root := filepath.Join(into, "root")
			args := append([]string{"--mode=root", "--variant=extract", "--keyring=" + keyring, "--include=" + pkg, Suite, root}, mirror()...)
			if err := run(ctx, o.Cache.Log(name), into, nil, "mmdebstrap", args...); err != nil {
				return err
			}
			for output, file := range files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(into, output)), 0o755); err != nil {
					return fmt.Errorf("make a directory of %s: %w", pkg, err)
				}
				if err := os.Rename(filepath.Join(root, file), filepath.Join(into, output)); err != nil {
					return fmt.Errorf("take a file of %s: %w", pkg, err)
				}
			}
			return nil
		},
	}
}

// prometheus is the server and promtool of Debian's package. Nodes of the lab find them in their PATH; on the host they run with the libraries
// of the image's root file system (prepared.Command).
func prometheus(o Options) cache.Artifact {
	return fromPackage(o, "prometheus", "prometheus", map[string]string{"bin/prometheus": "usr/bin/prometheus", "bin/promtool": "usr/bin/promtool"})
}

// dnsmasq is the DHCP server of the lab's router. Nodes' root file systems have the libraries that it needs.
func dnsmasq(o Options) cache.Artifact {
	return fromPackage(o, "dnsmasq", "dnsmasq-base", map[string]string{"bin/dnsmasq": "usr/sbin/dnsmasq"})
}

// mirror returns mmdebstrap's optional last argument: debian.MirrorVariable, if set, replaces Debian's own mirror.
func mirror() []string {
	if mirror := os.Getenv(debian.MirrorVariable); mirror != "" {
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
