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

func TestTransitAllocationIsReadBack(t *testing.T) {
	in := TransitInputs{
		Vpc: "blue", Node: "n1", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9},
		Addresses: []netip.Addr{netip.MustParseAddr("100.64.0.9"), netip.MustParseAddr("fd00:100:64::9")},
	}
	var allocations []TransitAllocation
	for _, row := range Transit(in) {
		if port, ok := row.Model.(*nb.LogicalRouterPort); ok {
			if allocation, ok := ReadTransitAllocation(TransitOwner("blue"), port); ok {
				allocations = append(allocations, allocation)
			}
		}
	}
	if len(allocations) != 1 || allocations[0].Vpc != in.Vpc || !slices.Equal(allocations[0].Addresses, in.Addresses) || allocations[0].MAC.String() != in.MAC.String() {
		t.Errorf("read %v of the ports of %v", allocations, in)
	}
}
