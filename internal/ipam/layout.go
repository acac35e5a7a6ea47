// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"

	"github.com/kiln-net/kiln/internal/ipfamily"
)

// layout is a subnet's CIDRs, worked out: which addresses ports can have, by family.
type layout struct {
	cidrs []netip.Prefix
	order []ipfamily.Family
	spans [2]spans
}

// spans are the addresses of one family. The zero value is a family that the subnet does not have.
type spans struct {
	// usable is every address that a port can have on request.
	usable ipfamily.Range
	// gateway is the router's address, if there is one.
	gateway netip.Addr
	// gatewayMAC is that of the router's port, which follows from gateway.
	gatewayMAC [6]byte
	// allowed is what ports get unasked: usable without gateway and excluded ranges; in order and disjoint.
	allowed []ipfamily.Range
	// size counts the addresses of allowed.
	size float64
}

func newLayout(s Subnet) (*layout, error) {
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
	}
	return l, nil
}

// usable leaves out the network and broadcast address of IPv4, and the subnet-router anycast address of IPv6 (RFC 4291, section
// 2.6.1). CIDRs of one and two addresses have neither (RFC 3021, RFC 6164).
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

// allow works out allowed and size.
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
	s.size = count(s.allowed)
}

// subtract gives what is left of whole without the holes, which are in order of their first addresses.
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

// count is exact up to 2^53.
func count(ranges []ipfamily.Range) float64 {
	total := new(big.Int)
	for _, r := range ranges {
		from, to := new(big.Int).SetBytes(r.From.AsSlice()), new(big.Int).SetBytes(r.To.AsSlice())
		total.Add(total, to.Sub(to, from)).Add(total, big.NewInt(1))
	}
	f, _ := new(big.Float).SetInt(total).Float64()
	return f
}

// allows reports whether the address is one that ports get unasked.
func (s *spans) allows(addr netip.Addr) bool {
	_, ok := s.span(addr)
	return ok
}

// span gives the index in allowed of the range that holds the address, or else of the first one after it.
func (s *spans) span(addr netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(s.allowed, addr, func(r ipfamily.Range, addr netip.Addr) int {
		switch {
		case r.To.Less(addr):
			return -1
		case addr.Less(r.From):
			return 1
		}
		return 0
	})
}
