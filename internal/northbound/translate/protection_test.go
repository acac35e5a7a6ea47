// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"strings"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

type protectionInputs struct {
	Vpc    string                          `json:"vpc"`
	Limits v1alpha1.ControlPlaneProtection `json:"limits"`
}

func TestProtection(t *testing.T) {
	rowsOf(t, "protection", func(in protectionInputs) []desired.Row { return Protection(in.Vpc, in.Limits) })
}

// TestKindsOfPacketsHaveNoDash protects MeteredPackets, which ends the kind at the first dash of a meter's name.
func TestKindsOfPacketsHaveNoDash(t *testing.T) {
	for _, kind := range packetKinds {
		if strings.Contains(kind.name, "-") {
			t.Error(kind.name)
		}
	}
}
