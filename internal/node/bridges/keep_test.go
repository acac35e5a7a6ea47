// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
)

func TestAShieldIsRaisedAgain(t *testing.T) {
	of := kernel.Shielded{Index: 3, VLANs: "10"}
	for name, c := range map[string]struct {
		r    raised
		want bool
	}{
		"just raised":           {raised{of, time.Now()}, true},
		"long ago":              {raised{of, time.Now().Add(-Refresh)}, false},
		"for another interface": {raised{kernel.Shielded{Index: 4, VLANs: "10"}, time.Now()}, false},
		"never":                 {raised{}, false},
	} {
		if got := c.r.covers(of); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
