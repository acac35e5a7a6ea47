// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

func TestNode(t *testing.T) {
	type input struct {
		Name, Vpc, Switch      string
		MAC                    hardwareAddr
		Addresses, InternalIPs []netip.Addr
	}
	rowsOf(t, "node-", func(in input) []desired.Row {
		return Node(NodeInputs{
			Name: in.Name, Vpc: in.Vpc, Switch: in.Switch,
			MAC: in.MAC.HardwareAddr, Addresses: in.Addresses, InternalIPs: in.InternalIPs,
		})
	})
}
