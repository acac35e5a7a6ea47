// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package prepared gives tests access to the results of `make prepare`: Kubernetes' programs, and a root file system with OVN.
package prepared

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// Dir returns the directory of these results: $KILN_CACHE, $XDG_CACHE_HOME/kiln or $HOME/.cache/kiln.
func Dir() (string, error) {
	if dir := os.Getenv("KILN_CACHE"); dir != "" {
		return dir, nil
	}
	caches, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory (set KILN_CACHE): %w", err)
	}
	return filepath.Join(caches, "kiln"), nil
}

// File returns the path of a file in Dir.
func File(name string) (string, error) {
	dir, err := Dir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w; run: make prepare", err)
	}
	return path, nil
}

// ImageRoot is the name, in Dir, of the root file system that is layer 1 of Kiln's image for an architecture.
func ImageRoot(architecture string) string { return "image-" + architecture }

// Root is the name, in Dir, of the root file system for this machine.
var Root = ImageRoot(runtime.GOARCH)

// Program returns the command line that runs a program of the root file system on this machine, independent of the machine's
// libraries.
func Program(path string) ([]string, error) { return Command(filepath.Join(Root, path)) }

// Command returns the command line that runs a program in Dir which is built for the root file system, such as bin/promtool.
func Command(name string) ([]string, error) {
	program, err := File(name)
	if err != nil {
		return nil, err
	}
	root, err := File(Root)
	if err != nil {
		return nil, err
	}
	libraries := filepath.Join(root, "lib/x86_64-linux-gnu") + ":" + filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	return []string{filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), "--library-path", libraries, program}, nil
}
