// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"net/netip"
	"slices"
)

// route is a route of the tunnel interface that moves to the bridge. It is stored as JSON in the database.
type route struct {
	// Destination is invalid for a default route.
	Destination netip.Prefix `json:"destination,omitzero"`
	Gateway     netip.Addr   `json:"gateway,omitzero"`
	Source      netip.Addr   `json:"source,omitzero"`
	// Family is 4 or 6; needed for a default route without a gateway.
	Family   int   `json:"family"`
	Priority int   `json:"priority,omitempty"`
	Table    int   `json:"table,omitempty"`
	Scope    uint8 `json:"scope,omitempty"`
	Protocol int   `json:"protocol,omitempty"`
	Flags    int   `json:"flags,omitempty"`
	MTU      int   `json:"mtu,omitempty"`
}

// memory records the addresses and routes that the bridge took over. It is stored in the database, because the bridge's
// interface is a tap of ovs-vswitchd and loses its addresses and routes whenever that process restarts.
type memory struct {
	// Uplink is the interface they were moved from.
	Uplink    string         `json:"uplink"`
	Addresses []netip.Prefix `json:"addresses"`
	Routes    []route        `json:"routes,omitempty"`
}

// observed is the kernel's state of the uplink and the bridge: global addresses, and routes that the kernel did not add itself.
type observed struct {
	uplinkAddresses, bridgeAddresses []netip.Prefix
	uplinkRoutes, bridgeRoutes       []route
}

// moves are the steps after which the bridge has all addresses and routes and the uplink has none.
type moves struct {
	// memory must be stored in the database before any other step.
	memory memory
	// addAddresses and addRoutes are added to the bridge, in this order.
	addAddresses []netip.Prefix
	addRoutes    []route
	// clearAddresses and clearRoutes are removed from the uplink after the bridge has them.
	clearAddresses []netip.Prefix
	clearRoutes    []route
}

// planMoves plans the complete move of an interface's addresses to a bridge. The move can be interrupted after any step, and the
// bridge's interface can vanish at any time: the next plan continues from the state it finds.
func planMoves(uplink string, m memory, seen observed) moves {
	switch {
	case m.Uplink == "" && len(seen.uplinkAddresses) == 0: // another program made the bridge, and it already has the addresses
		m = memory{Uplink: uplink, Addresses: seen.bridgeAddresses, Routes: seen.bridgeRoutes}
	case m.Uplink != uplink:
		m = memory{Uplink: uplink}
	}
	next := memory{
		Uplink:    uplink,
		Addresses: remember(m.Addresses, seen.uplinkAddresses, seen.bridgeAddresses),
		Routes:    remember(m.Routes, seen.uplinkRoutes, seen.bridgeRoutes),
	}
	slices.SortStableFunc(next.Addresses, shortFirst) // the first is the tunnel endpoint
	slices.SortStableFunc(next.Routes, gatewaysLast)
	return moves{
		memory:         next,
		addAddresses:   without(next.Addresses, seen.bridgeAddresses),
		addRoutes:      without(next.Routes, seen.bridgeRoutes),
		clearAddresses: seen.uplinkAddresses,
		clearRoutes:    seen.uplinkRoutes,
	}
}

// remember returns the entries that the bridge should have. If the uplink has only known entries, a move was interrupted or the
// node's network configuration restored them: the known entries stay. If the uplink has new entries, it was reconfigured: its
// entries apply, together with the known ones that are still on the uplink or the bridge.
func remember[T comparable](known, uplink, bridge []T) []T {
	fresh := without(uplink, known)
	if len(fresh) == 0 {
		return slices.Clone(known)
	}
	kept := make([]T, 0, len(known)+len(fresh))
	for _, k := range known {
		if slices.Contains(uplink, k) || slices.Contains(bridge, k) {
			kept = append(kept, k)
		}
	}
	return append(kept, fresh...)
}

// shortFirst puts IPv4 before IPv6.
func shortFirst(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() }

// gatewaysLast sorts routes with a gateway last: the kernel accepts them only when the gateway is reachable.
func gatewaysLast(a, b route) int {
	switch {
	case a.Gateway.IsValid() == b.Gateway.IsValid():
		return 0
	case b.Gateway.IsValid():
		return -1
	}
	return 1
}

// without returns the elements of a that are not in b, in a's order.
func without[T comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(e T) bool { return slices.Contains(b, e) })
}
