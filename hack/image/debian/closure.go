// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// wanted are the packages whose programs and files the image needs. Their dependencies follow from Debian's index.
var wanted = []string{
	"base-files",      // directories, release and licences
	"busybox",         // a shell and tools for diagnosis
	"ca-certificates", // backups to object stores, and other TLS
	"conntrack",
	"ethtool",
	"iproute2",
	"iputils-ping",
	"netbase", // names of protocols and services
	"nftables",
	"openvswitch-switch",
	"ovn-central",
	"ovn-host",
	"tcpdump", // for `kubectl ko tcpdump`
}

// omitted are dependencies that the image does not need. They serve package scripts, services of a host, or shell scripts, and the image runs none
// of them. Root checks that no program lacks a library.
var omitted = []string{
	"adduser", "base-passwd", "debconf", "debconf-2.0", "dpkg", "init-system-helpers", "kmod", "libcap2-bin", "libpam-systemd", "lsb-release", "mawk", "awk",
	"openssl", "openssl-provider-legacy", "perl", "perl-base", "procps", "python3", "systemd", "sysvinit-utils", "uuid-runtime",
}

// stanza is a package of Debian's index.
type stanza struct {
	Package
	depends [][]string // alternatives, one list per dependency
}

// parseIndex reads an index of binary packages (deb-control(5)).
func parseIndex(index io.Reader) (map[string]stanza, error) {
	all := map[string]stanza{}
	var s stanza
	lines := bufio.NewScanner(index)
	lines.Buffer(nil, 1<<20) // fields such as Provides have long lines
	for lines.Scan() {
		if lines.Text() == "" {
			all[s.Name] = s
			s = stanza{}
			continue
		}
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "Package":
			s.Name = value
		case "Version":
			s.Version = value
		case "Architecture":
			s.Architecture = value
		case "SHA256":
			s.SHA256 = value
		case "Filename":
			s.Path = value
		case "Depends", "Pre-Depends":
			s.depends = append(s.depends, alternatives(value)...)
		}
	}
	all[s.Name] = s
	delete(all, "")
	return all, lines.Err()
}

// notName matches the part of a relation after the package's name: architecture and version.
var notName = regexp.MustCompile(`[:( ].*$`)

func alternatives(depends string) [][]string {
	var out [][]string
	for dependency := range strings.SplitSeq(depends, ",") {
		var names []string
		for alternative := range strings.SplitSeq(dependency, "|") {
			names = append(names, notName.ReplaceAllString(strings.TrimSpace(alternative), ""))
		}
		out = append(out, names)
	}
	return out
}

// closure returns the packages of the names and of their dependencies without the omitted ones, sorted by name. Of alternatives it takes the first that
// exists. It never chooses a provider of a virtual package: name it in wanted.
func closure(index map[string]stanza, names, omitted []string) ([]Package, error) {
	seen := map[string]bool{}
	var out []Package
	for queue := slices.Clone(names); len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		if seen[name] {
			continue
		}
		seen[name] = true
		s, ok := index[name]
		if !ok {
			return nil, fmt.Errorf("no package %s", name)
		}
		out = append(out, s.Package)
		for _, choices := range s.depends {
			if slices.ContainsFunc(choices, func(choice string) bool { return slices.Contains(omitted, choice) || seen[choice] }) {
				continue
			}
			i := slices.IndexFunc(choices, func(choice string) bool { _, exists := index[choice]; return exists })
			if i < 0 {
				return nil, fmt.Errorf("package %s depends on %s, which no package has as its name", name, strings.Join(choices, " | "))
			}
			queue = append(queue, choices[i])
		}
	}
	slices.SortFunc(out, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}
