// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"testing"
)

func TestGatewayMACIsStableAndUnicast(t *testing.T) {
	a, b := gatewayMAC(netip.MustParseAddr("10.16.0.1")), gatewayMAC(netip.MustParseAddr("fd00::1"))
	if a.String() != gatewayMAC(netip.MustParseAddr("10.16.0.1")).String() || a.String() == b.String() {
		t.Errorf("MAC addresses %s and %s do not follow from the gateways", a, b)
	}
	if a[0]&3 != 2 {
		t.Errorf("MAC address %s is not a locally administered unicast address", a)
	}
}
