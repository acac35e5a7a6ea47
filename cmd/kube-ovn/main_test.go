// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// maxPlugin bounds the plugin's size, in bytes: a node executes it for every pod, and the first time reads it from the disk.
const maxPlugin = 5_000_000

func TestThePluginIsSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kube-ovn")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, ".") // the flags of the image
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	program, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if program.Size() > maxPlugin {
		t.Errorf("kube-ovn has %d bytes, more than %d; find the new imports with go tool nm -size -sort size", program.Size(), maxPlugin)
	}
	t.Logf("kube-ovn has %d bytes", program.Size())
}
