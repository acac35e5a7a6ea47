// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"strings"
	"testing"

	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/node/nodehealth"
)

func TestHostName(t *testing.T) {
	id := strings.Repeat("a", 64)
	names := map[string]string{}
	for what, name := range map[string]string{
		"a container":                               sandbox.HostName(id, "eth0", 0),
		"its other name":                            sandbox.HostName(id, "eth0", 1),
		"its second interface":                      sandbox.HostName(id, "net1", 0),
		"a container that shares all but the end":   sandbox.HostName(id[:63]+"b", "eth0", 0),
		"a container whose ID runs into the ifname": sandbox.HostName(id+"/eth0", "", 0),
	} {
		if len(name) > 15 {
			t.Errorf("%s: %s is longer than the kernel takes", what, name)
		}
		if other, taken := names[name]; taken {
			t.Errorf("%s and %s have the same name %s", what, other, name)
		}
		if !nodehealth.IsPodLink(name) {
			t.Errorf("%s: nodehealth does not know the form of %s", what, name)
		}
		names[name] = what
	}
	// An agent finds the devices of its previous version by name, so the name must not change between versions.
	if got := sandbox.HostName(id, "eth0", 0); got != "b66785ef9b54_h" {
		t.Errorf("the name has changed to %s", got)
	}
}
