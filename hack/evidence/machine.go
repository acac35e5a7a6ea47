// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// thisMachine describes this machine.
func thisMachine() (Machine, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Machine{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Machine{}, fmt.Errorf("read the size of memory: %w", err)
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return Machine{}, fmt.Errorf("read the distribution: %w", err)
	}
	const gib = 1 << 30
	return Machine{
		Cores: runtime.NumCPU(), MemoryGiB: int((info.Totalram*uint64(info.Unit) + gib/2) / gib),
		Kernel: version(unix.ByteSliceToString(name.Release[:])), Distribution: distribution(string(release)),
	}, nil
}

var numbers = regexp.MustCompile(`^[0-9.]*[0-9]`)

// version returns the version of a kernel's release. The rest of a release is the choice of its builder, and can have names.
func version(release string) string { return numbers.FindString(release) }

var prettyName = regexp.MustCompile(`(?m)^PRETTY_NAME="?([^"\n]*)"?$`)

// distribution returns the name in the content of os-release(5).
func distribution(release string) string {
	if found := prettyName.FindStringSubmatch(release); found != nil {
		return strings.TrimSpace(found[1])
	}
	return "unknown"
}
