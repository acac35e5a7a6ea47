// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kernel moves the addresses, routes and neighbours of a network interface to a bridge whose port the interface becomes, and back.
// Every function is idempotent, so that an interrupted move or restoration is continued by calling it again.
package kernel

import (
	"slices"
	"time"
)

// Memory records the addresses and routes that the bridge took over. It is stored on disk, because in the userspace datapath the bridge's
// interface is a tap of ovs-vswitchd and loses its addresses and routes whenever that process restarts.
type Memory struct {
	// Uplink is the interface they were moved from.
	Uplink    string
	Addresses []Address
	Routes    []Route
}

// Observed is the kernel's state of the uplink and the bridge: global addresses, and routes that the kernel did not add itself.
type Observed struct {
	UplinkAddresses, BridgeAddresses []Address
	UplinkRoutes, BridgeRoutes       []Route
}

// Moves are the steps after which the bridge has all addresses and routes and the uplink has none.
type Moves struct {
	// Memory must be stored on disk before any other step.
	Memory Memory
	// AddAddresses, AddRoutes and AddNeighbours are added to the bridge, in this order.
	AddAddresses  []Address
	AddRoutes     []Route
	AddNeighbours []Neighbour
	// ClearAddresses and ClearRoutes are removed from the uplink after the bridge has them.
	ClearAddresses []Address
	ClearRoutes    []Route
}

// Plan plans the complete move of an interface's addresses to a bridge. The move can be interrupted after any step, and the
// bridge's interface can vanish at any time: the next plan continues from the state it finds.
func Plan(uplink string, m Memory, seen Observed) Moves {
	switch {
	case m.Uplink == "" && len(seen.UplinkAddresses) == 0: // another program made the bridge, and it already has the addresses
		m = Memory{Uplink: uplink, Addresses: seen.BridgeAddresses, Routes: seen.BridgeRoutes}
	case m.Uplink != uplink:
		m = Memory{Uplink: uplink}
	}
	next := Memory{
		Uplink:    uplink,
		Addresses: remember(m.Addresses, seen.UplinkAddresses, seen.BridgeAddresses),
		Routes:    distinct(remember(m.Routes, seen.UplinkRoutes, seen.BridgeRoutes), nil),
	}
	slices.SortStableFunc(next.Addresses, shortFirst) // the first is the tunnel endpoint
	slices.SortStableFunc(next.Routes, gatewaysLast)
	extended := extend(next.Addresses, seen.UplinkAddresses)
	return Moves{
		Memory:         next,
		AddAddresses:   without(next.Addresses, without(seen.BridgeAddresses, extended)),
		AddRoutes:      without(next.Routes, seen.BridgeRoutes),
		ClearAddresses: seen.UplinkAddresses,
		ClearRoutes:    seen.UplinkRoutes,
	}
}

// extend gives addresses the lifetimes that they have on the uplink if these are longer, and returns those addresses: some DHCP clients, which receive all packets of the
// interface, renew them there.
func extend(addresses, uplink []Address) (extended []Address) {
	for i := range addresses {
		a := &addresses[i]
		for _, u := range uplink {
			if a.key() == u.key() && a.Valid != 0 && (u.Valid == 0 || u.Valid > a.Valid+time.Second) {
				a.Valid, a.Preferred = u.Valid, u.Preferred
				extended = append(extended, *a)
			}
		}
	}
	return extended
}

// remember returns the entries that the bridge should have. If the uplink has only known entries, a move was interrupted or the
// node's network configuration restored them: the known entries stay. If the uplink has new entries, it was reconfigured: its
// entries apply, together with the known ones that are still on the uplink or the bridge.
func remember[T keyed[K], K comparable](known, uplink, bridge []T) []T {
	fresh := without(uplink, known)
	if len(fresh) == 0 {
		return slices.Clone(known)
	}
	kept := make([]T, 0, len(known)+len(fresh))
	for _, k := range known {
		if contains(uplink, k) || contains(bridge, k) {
			kept = append(kept, k)
		}
	}
	return append(kept, fresh...)
}

// shortFirst puts IPv4 before IPv6.
func shortFirst(a, b Address) int { return a.Prefix.Addr().BitLen() - b.Prefix.Addr().BitLen() }

// gatewaysLast sorts routes with a gateway last: the kernel accepts them only when the gateway is reachable.
func gatewaysLast(a, b Route) int {
	one, other := len(a.Gateways()) > 0, len(b.Gateways()) > 0
	switch {
	case one == other:
		return 0
	case other:
		return -1
	}
	return 1
}

// keyed is an entry whose key says whether two are the same one.
type keyed[K comparable] interface{ key() K }

func contains[T keyed[K], K comparable](list []T, e T) bool {
	return slices.ContainsFunc(list, func(other T) bool { return other.key() == e.key() })
}

// without returns the elements of a that are not in b, in a's order.
func without[T keyed[K], K comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(e T) bool { return contains(b, e) })
}

// Follow returns the state of an earlier plan as both interfaces have it now: with new lifetimes and, if the bridge had everything, without entries that were removed from it.
func (s State) Follow(seen Observed, complete bool) State {
	s = s.renewed(seen)
	if complete {
		s = s.without(seen)
	}
	return s
}

// without returns the state without entries that were removed from a bridge that had all of them, by a person, by a program, or at their end. Those that
// are on the interface again stay. A bridge that was set down loses all of its routes, and IPv6 addresses, at once: if no entry of a family is left, all of
// them are added again.
func (s State) without(seen Observed) State {
	s.Addresses = remaining(s.Addresses, seen.UplinkAddresses, seen.BridgeAddresses, func(a Address) bool { return a.Prefix.Addr().Is4() })
	routes := slices.DeleteFunc(slices.Clone(s.Routes), Route.isKernel) // the bridge has others in their place
	gone := without(routes, remaining(routes, seen.UplinkRoutes, seen.BridgeRoutes, func(r Route) bool { return r.Family == 4 }))
	s.Routes = without(s.Routes, gone)
	return s
}

func remaining[T keyed[K], K comparable](known, uplink, bridge []T, is4 func(T) bool) []T {
	left := map[bool]bool{}
	for _, e := range known {
		left[is4(e)] = left[is4(e)] || contains(bridge, e)
	}
	return slices.DeleteFunc(slices.Clone(known), func(e T) bool { return left[is4(e)] && !contains(bridge, e) && !contains(uplink, e) })
}

// renewed returns the state with the lifetimes that entries have on the bridge, where router advertisements renew them.
func (s State) renewed(seen Observed) State {
	s.Addresses, s.Routes = slices.Clone(s.Addresses), slices.Clone(s.Routes)
	for i := range s.Addresses {
		for _, b := range seen.BridgeAddresses {
			if a := &s.Addresses[i]; a.key() == b.key() && (a.Valid-b.Valid).Abs() > lifetimeSlack {
				a.Valid, a.Preferred = b.Valid, b.Preferred
			}
		}
	}
	for i := range s.Routes {
		for _, b := range seen.BridgeRoutes {
			if r := &s.Routes[i]; r.key() == b.key() && (r.Expires-b.Expires).Abs() > lifetimeSlack {
				r.Expires = b.Expires
			}
		}
	}
	return s
}

// lifetimeSlack is the difference of lifetimes that is not recorded.
const lifetimeSlack = time.Minute
