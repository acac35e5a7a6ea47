// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"net/netip"
	"slices"
)

// route is a route of the tunnel interface that its bridge takes over. It is kept as JSON in the database.
type route struct {
	// Destination is not valid for a default route.
	Destination netip.Prefix `json:"destination,omitzero"`
	Gateway     netip.Addr   `json:"gateway,omitzero"`
	Source      netip.Addr   `json:"source,omitzero"`
	// Family is 4 or 6, for a default route without gateway.
	Family   int   `json:"family"`
	Priority int   `json:"priority,omitempty"`
	Table    int   `json:"table,omitempty"`
	Scope    uint8 `json:"scope,omitempty"`
	Protocol int   `json:"protocol,omitempty"`
	Flags    int   `json:"flags,omitempty"`
	MTU      int   `json:"mtu,omitempty"`
}

// memory is what the bridge took over, kept in the database: the bridge's interface is a tap of ovs-vswitchd and loses addresses
// and routes whenever that restarts.
type memory struct {
	// Uplink is the interface they come from.
	Uplink    string         `json:"uplink"`
	Addresses []netip.Prefix `json:"addresses"`
	Routes    []route        `json:"routes,omitempty"`
}

// observed is what the kernel has on the uplink and the bridge: global addresses, and routes that were not made by the kernel.
type observed struct {
	uplinkAddresses, bridgeAddresses []netip.Prefix
	uplinkRoutes, bridgeRoutes       []route
}

// moves is what brings the kernel to the bridge having everything and the uplink nothing.
type moves struct {
	// memory must be in the database before any of the others is done.
	memory memory
	// addAddresses and addRoutes go to the bridge, in this order.
	addAddresses []netip.Prefix
	addRoutes    []route
	// clearAddresses and clearRoutes go from the uplink, once the bridge has them.
	clearAddresses []netip.Prefix
	clearRoutes    []route
}

// planMoves is the whole of moving an interface's addresses to a bridge. It may be interrupted after any of its steps, and the
// bridge's interface may vanish at any time: the next plan goes on from there.
func planMoves(uplink string, m memory, seen observed) moves {
	switch {
	case m.Uplink == "" && len(seen.uplinkAddresses) == 0: // somebody else made the bridge: it has them already
		m = memory{Uplink: uplink, Addresses: seen.bridgeAddresses, Routes: seen.bridgeRoutes}
	case m.Uplink != uplink:
		m = memory{Uplink: uplink}
	}
	next := memory{
		Uplink:    uplink,
		Addresses: remember(m.Addresses, seen.uplinkAddresses, seen.bridgeAddresses),
		Routes:    remember(m.Routes, seen.uplinkRoutes, seen.bridgeRoutes),
	}
	slices.SortStableFunc(next.Addresses, shortFirst) // the first is the address of the tunnels
	slices.SortStableFunc(next.Routes, gatewaysLast)
	return moves{
		memory:         next,
		addAddresses:   without(next.Addresses, seen.bridgeAddresses),
		addRoutes:      without(next.Routes, seen.bridgeRoutes),
		clearAddresses: seen.uplinkAddresses,
		clearRoutes:    seen.uplinkRoutes,
	}
}

// remember returns what the bridge is to have. An uplink whose entries are all known was left in the middle of a move, or got
// them again from the node's own network configuration: the memory holds. One with others was configured anew: its entries count,
// and those that the bridge has in use.
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

// gatewaysLast: a route to a gateway is accepted only when the gateway can be reached.
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
