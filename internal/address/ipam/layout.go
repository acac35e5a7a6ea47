// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// layout holds the addresses that ports of a subnet can have, by family, computed from its CIDRs.
type layout struct {
	cidrs []netip.Prefix
	order []ipfamily.Family
	spans [2]spans
}

// spans are the address ranges of one family. The zero value is a family without a CIDR.
type spans struct {
	// usable has every address that a port can request.
	usable ipfamily.Range
	// gateway is the router's address, if there is one.
	gateway netip.Addr
	// gatewayMAC is the MAC address of the router's port, derived from gateway.
	gatewayMAC [6]byte
	// allowed has the addresses that are allocated without an explicit request: usable without gateway and excluded ranges; in
	// order and disjoint.
	allowed []ipfamily.Range
	// size is the number of addresses in allowed.
	size float64
	// parts divides allowed: first the addresses of no pool, then the pools, in the order of the subnet's.
	parts []part
	// split is allowed, divided so that each range is in one part; partOf has the part at the same index. Without pools partOf
	// is nil, and all addresses are in the first part.
	split  []ipfamily.Range
	partOf []int32
}

// part is a pool, or the addresses of no pool, for which name is empty.
type part struct {
	name    string
	allowed []ipfamily.Range
	size    float64
	// hasFamily is true for a pool whose ranges have addresses of the family, even if none of them is allowed.
	hasFamily bool
}

func newLayout(s Subnet, pools []Pool) (*layout, error) {
	l := &layout{cidrs: slices.Clone(s.CIDRs)}
	if len(s.CIDRs) == 0 {
		return nil, errors.New("no CIDR")
	}
	for _, cidr := range s.CIDRs {
		family := ipfamily.Of(cidr.Addr())
		if slices.Contains(l.order, family) {
			return nil, fmt.Errorf("more than one CIDR of family %s", family)
		}
		l.order = append(l.order, family)
		l.spans[family].usable = usable(cidr)
	}
	for _, gateway := range s.Gateways {
		sp := &l.spans[ipfamily.Of(gateway)]
		if !slices.ContainsFunc(s.CIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(gateway) }) {
			return nil, fmt.Errorf("gateway %s is outside of %s", gateway, ipfamily.Join(s.CIDRs))
		}
		sp.gateway, sp.gatewayMAC = gateway, ipfamily.MAC(gateway, 0)
	}
	for _, family := range l.order {
		l.spans[family].allow(s.Exclude)
		l.spans[family].divide(pools)
	}
	return l, nil
}

// usable returns a CIDR without the network and broadcast address of IPv4, or the subnet-router anycast address of IPv6 (RFC
// 4291, section 2.6.1). CIDRs of one and two addresses have neither (RFC 3021, RFC 6164).
func usable(cidr netip.Prefix) ipfamily.Range {
	r := ipfamily.RangeOf(cidr)
	if cidr.Addr().BitLen()-cidr.Bits() < 2 {
		return r
	}
	r.From = r.From.Next()
	if cidr.Addr().Is4() {
		r.To = r.To.Prev()
	}
	return r
}

// allow computes allowed and size.
func (s *spans) allow(exclude []ipfamily.Range) {
	out := make([]ipfamily.Range, 0, len(exclude)+1)
	for _, r := range exclude {
		if r.Overlaps(s.usable) {
			out = append(out, r)
		}
	}
	if s.gateway.IsValid() && s.usable.Contains(s.gateway) {
		out = append(out, ipfamily.Range{From: s.gateway, To: s.gateway})
	}
	slices.SortFunc(out, func(a, b ipfamily.Range) int { return a.From.Compare(b.From) })
	s.allowed = subtract(s.usable, out)
	s.size = ipfamily.Count(s.allowed)
}

// divide computes parts, split and partOf. An address in several pools belongs to the first.
func (s *spans) divide(pools []Pool) {
	s.parts = []part{{allowed: s.allowed, size: s.size}}
	s.split, s.partOf = s.allowed, nil
	if len(pools) == 0 {
		return
	}
	rest := s.allowed
	for _, pool := range pools {
		ranges := sorted(pool.Ranges)
		p := part{name: pool.Name, allowed: intersect(rest, ranges), hasFamily: s.namedBy(ranges)}
		p.size = ipfamily.Count(p.allowed)
		rest = subtractAll(rest, p.allowed)
		s.parts = append(s.parts, p)
	}
	s.parts[0] = part{allowed: rest, size: ipfamily.Count(rest)}
	type owned struct {
		ipfamily.Range
		part int32
	}
	var all []owned
	for i, p := range s.parts {
		for _, r := range p.allowed {
			all = append(all, owned{r, int32(i)})
		}
	}
	slices.SortFunc(all, func(a, b owned) int { return a.From.Compare(b.From) })
	s.split = make([]ipfamily.Range, len(all))
	s.partOf = make([]int32, len(all))
	for i, o := range all {
		s.split[i], s.partOf[i] = o.Range, o.part
	}
}

// namedBy reports whether one of the ranges is of this family. It is false if the subnet has no CIDR of the family.
func (s *spans) namedBy(ranges []ipfamily.Range) bool {
	return s.usable.From.IsValid() && slices.ContainsFunc(ranges, func(r ipfamily.Range) bool {
		return ipfamily.Of(r.From) == ipfamily.Of(s.usable.From)
	})
}

// sorted returns the ranges in order and disjoint, with adjacent ranges merged.
func sorted(ranges []ipfamily.Range) []ipfamily.Range {
	in := slices.Clone(ranges)
	slices.SortFunc(in, func(a, b ipfamily.Range) int { return a.From.Compare(b.From) })
	var out []ipfamily.Range
	for _, r := range in {
		if n := len(out); n > 0 && ipfamily.Of(out[n-1].From) == ipfamily.Of(r.From) && (!out[n-1].To.Less(r.From) || out[n-1].To.Next() == r.From) {
			if out[n-1].To.Less(r.To) {
				out[n-1].To = r.To
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// intersect returns the addresses in both; both are in order and disjoint.
func intersect(a, b []ipfamily.Range) []ipfamily.Range {
	var both []ipfamily.Range
	for len(a) > 0 && len(b) > 0 {
		if a[0].Overlaps(b[0]) {
			r := a[0]
			if r.From.Less(b[0].From) {
				r.From = b[0].From
			}
			if b[0].To.Less(r.To) {
				r.To = b[0].To
			}
			both = append(both, r)
		}
		if a[0].To.Less(b[0].To) {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return both
}

// subtractAll returns spans without holes. Both are in order and disjoint, and each hole is inside a span.
func subtractAll(spans, holes []ipfamily.Range) []ipfamily.Range {
	var left []ipfamily.Range
	for _, span := range spans {
		within := 0
		for within < len(holes) && !span.To.Less(holes[within].From) {
			within++
		}
		left = append(left, subtract(span, holes[:within])...)
		holes = holes[within:]
	}
	return left
}

// subtract returns whole without the holes, which are ordered by their first address.
func subtract(whole ipfamily.Range, holes []ipfamily.Range) []ipfamily.Range {
	left := make([]ipfamily.Range, 0, len(holes)+1)
	from := whole.From
	for _, hole := range holes {
		if hole.To.Less(from) {
			continue
		}
		if from.Less(hole.From) {
			left = append(left, ipfamily.Range{From: from, To: hole.From.Prev()})
		}
		if !hole.To.Less(whole.To) {
			return left
		}
		from = hole.To.Next()
	}
	return append(left, ipfamily.Range{From: from, To: whole.To})
}

// nowhere is the part of addresses that are allocated only on explicit request.
const nowhere int32 = -1

// partAt returns the index in parts of the part with the address, or nowhere.
func (s *spans) partAt(addr netip.Addr) int32 {
	i, ok := find(s.split, addr)
	switch {
	case !ok:
		return nowhere
	case s.partOf == nil:
		return 0
	}
	return s.partOf[i]
}

// find returns the index of the range with the address, or else of the first range after it. The ranges are in order and
// disjoint.
func find(ranges []ipfamily.Range, addr netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(ranges, addr, func(r ipfamily.Range, addr netip.Addr) int {
		switch {
		case r.To.Less(addr):
			return -1
		case addr.Less(r.From):
			return 1
		}
		return 0
	})
}
