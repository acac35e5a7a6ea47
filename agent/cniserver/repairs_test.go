// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"testing"

	"github.com/kiln-net/kiln/agent/sandbox"
)

// TestAPortWithoutItsVethIsNotMissing: the next attempt to add the port of a deleted pod again may be a quarter of an hour away.
func TestAPortWithoutItsVethIsNotMissing(t *testing.T) {
	var r repairs
	r.fail("running")
	r.fail("deleted")
	if r.forget(map[string]sandbox.HostLink{"running": {}}); r.missing() != 1 || !r.failed["running"] {
		t.Errorf("the missing ports are %v", r.failed)
	}
}
