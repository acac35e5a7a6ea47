// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"testing"
	"time"

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

// TestAPortThatIsBackIsNotMissing: another program may add it while the agent cannot. A deletion after the comparison began is not forgotten.
func TestAPortThatIsBackIsNotMissing(t *testing.T) {
	var r repairs
	for _, name := range []string{"back", "deleted"} {
		r.portMissing(name)
		r.fail(name)
	}
	r.present("back", time.Now().Add(time.Second))
	r.present("deleted", time.Now().Add(-time.Second))
	if _, known := r.absence("back"); known || r.failed["back"] {
		t.Error("the port that is back counts as missing")
	}
	if _, known := r.absence("deleted"); !known || !r.failed["deleted"] {
		t.Error("the later deletion is forgotten")
	}
}
