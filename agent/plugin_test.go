// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"os"
	"path/filepath"
	"testing"
)

// maxPlugin bounds the plugin's size, in bytes: a node executes it for every pod, and the first time reads it from the disk.
const maxPlugin = 5_000_000

func TestThePluginIsSmall(t *testing.T) {
	program, err := os.Stat(filepath.Join(plugins, "kube-ovn"))
	must(t, err)
	if program.Size() > maxPlugin {
		t.Errorf("kube-ovn has %d bytes, more than %d; find the new imports with go tool nm -size -sort size", program.Size(), maxPlugin)
	}
	t.Logf("kube-ovn has %d bytes", program.Size())
}
