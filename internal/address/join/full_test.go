// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"fmt"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipam"
)

func TestFullSaysWhatToDo(t *testing.T) {
	for want, err := range map[string]error{
		"subnet join has no free address: widen its cidrBlock, or remove deleted nodes":             &ipam.ExhaustedError{},
		"subnet join is full: the switch has all 2047 ports that it can have: remove deleted nodes": &ipam.PortsError{Limit: 2047},
	} {
		if got := Full(fmt.Errorf("allocate: %w", err), "deleted nodes"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
