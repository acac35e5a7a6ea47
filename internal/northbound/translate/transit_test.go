// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

func TestTransit(t *testing.T) {
	type input struct {
		Vpc, Node           string
		NextHops, Addresses []netip.Addr
		MAC                 hardwareAddr
		Services, Outgoing  []netip.Prefix
		RouteTables         []string
		Routes              []StaticRoute
	}
	rowsOf(t, "transit-", func(in input) []desired.Row {
		return Transit(TransitInputs{
			Vpc: in.Vpc, Node: in.Node, NextHops: in.NextHops, Addresses: in.Addresses, MAC: in.MAC.HardwareAddr,
			Services: in.Services, Outgoing: in.Outgoing, RouteTables: in.RouteTables, Routes: in.Routes,
		})
	})
}

func TestTransitLeaseIsReadBack(t *testing.T) {
	in := TransitInputs{
		Vpc: "blue", Node: "n1", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9},
		Addresses: []netip.Addr{netip.MustParseAddr("100.64.0.9"), netip.MustParseAddr("fd00:100:64::9")},
	}
	var leases []TransitLease
	for _, row := range Transit(in) {
		if port, ok := row.Model.(*nb.LogicalRouterPort); ok {
			if lease, ok := ReadTransitLease(TransitOwner("blue"), port); ok {
				leases = append(leases, lease)
			}
		}
	}
	if len(leases) != 1 || leases[0].Vpc != in.Vpc || !slices.Equal(leases[0].Addresses, in.Addresses) || leases[0].MAC.String() != in.MAC.String() {
		t.Errorf("read %v of the ports of %v", leases, in)
	}
}
