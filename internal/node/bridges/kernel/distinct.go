// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// place is where the kernel stores an IPv6 route.
type place struct {
	destination     netip.Prefix
	table, priority int
}

func (r Route) place() place { return place{r.Destination, r.Table, r.Priority} }

// distinct returns the routes with one for each router that advertises a network, each with a metric of its own that is not taken, the preferred router first. The kernel
// keeps its own routes by several routers apart, but takes such routes of a program for one multipath route.
func distinct(list []Route, taken map[place]bool) []Route {
	used := maps.Clone(taken)
	if used == nil {
		used = map[place]bool{}
	}
	is := func(r Route) bool { return r.Family == 6 && r.Protocol == unix.RTPROT_RA && r.Hops == "" }
	made := slices.DeleteFunc(slices.Clone(list), is)
	for _, r := range made {
		if r.Family == 6 {
			used[r.place()] = true
		}
	}
	ours := slices.DeleteFunc(slices.Clone(list), func(r Route) bool { return !is(r) })
	slices.SortStableFunc(ours, func(a, b Route) int { return a.rank() - b.rank() })
	for _, r := range ours {
		if contains(made, r) {
			continue
		}
		for used[r.place()] {
			r.Priority++
		}
		used[r.place()] = true
		made = append(made, r)
	}
	return made
}

// rank is lower for a router with a higher preference. Its values are in RFC 4191, section 2.1.
func (r Route) rank() int { return []int{0: 1, 1: 0, 2: 1, 3: 2}[r.Preference&3] }

// elsewhere returns the IPv6 routes of interfaces with other indices.
func elsewhere(indices ...int) ([]netlink.Route, error) {
	list, err := Whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of other interfaces: %w", err)
	}
	return slices.DeleteFunc(list, func(r netlink.Route) bool {
		return r.Type != unix.RTN_UNICAST || r.Flags&unix.RTM_F_CLONED != 0 || slices.Contains(indices, r.LinkIndex)
	}), nil
}

// takenElsewhere returns the places of routes of other interfaces with which the kernel would make a multipath route: those by gateways that programs have added.
func takenElsewhere(index int) (map[place]bool, error) {
	list, err := elsewhere(index)
	if err != nil {
		return nil, err
	}
	taken := map[place]bool{}
	for _, r := range list {
		if Configured(r) {
			taken[routeOf(r, index).place()] = true
		}
	}
	return taken, nil
}

// shared reports whether a further interface has an IPv6 route in the same place.
func (r Route) shared(link, from netlink.Link) (bool, error) {
	indices := []int{link.Attrs().Index}
	if from != nil {
		indices = append(indices, from.Attrs().Index)
	}
	list, err := elsewhere(indices...)
	return slices.ContainsFunc(list, func(other netlink.Route) bool {
		return len(other.MultiPath) == 0 && routeOf(other, 0).place() == r.place()
	}), err
}
