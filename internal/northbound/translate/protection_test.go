// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
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

// TestMetersNameTheirVpc checks that the metrics of nodes find the kind and the VPC in the name of each meter.
func TestMetersNameTheirVpc(t *testing.T) {
	for _, want := range packetKinds {
		for _, vpc := range []string{"ovn-cluster", "rejects-a.b", "a"} {
			if kind, name, ok := v1alpha1.ParsePacketMeter(v1alpha1.PacketMeter(want.name, vpc)); kind != want.name || name != vpc || !ok {
				t.Errorf("%s of %s: %s of %s, %t", want.name, vpc, kind, name, ok)
			}
		}
	}
	if _, _, ok := v1alpha1.ParsePacketMeter("log-7f"); ok {
		t.Error("the meter of a policy's log has a kind")
	}
}
