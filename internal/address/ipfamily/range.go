// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipfamily

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
)

// Range is all addresses from From to To, inclusive. Both have the same family.
type Range struct {
	From netip.Addr
	To   netip.Addr
}

// RangeOf returns the range of all addresses of a prefix.
func RangeOf(prefix netip.Prefix) Range {
	return Range{From: prefix.Masked().Addr(), To: LastAddr(prefix)}
}

// Contains reports whether the address is in the range.
func (r Range) Contains(addr netip.Addr) bool {
	return addr.BitLen() == r.From.BitLen() && r.From.Compare(addr) <= 0 && addr.Compare(r.To) <= 0
}

// Overlaps reports whether the ranges have an address in common.
func (r Range) Overlaps(o Range) bool {
	return r.From.BitLen() == o.From.BitLen() && r.From.Compare(o.To) <= 0 && o.From.Compare(r.To) <= 0
}

// String returns the form of status fields: one address, or the first and the last with a hyphen between them.
func (r Range) String() string {
	if r.From == r.To {
		return r.From.String()
	}
	return r.From.String() + "-" + r.To.String()
}

// InAny reports whether one of the ranges contains one of the addresses.
func InAny(ranges []Range, addrs ...netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r Range) bool { return slices.ContainsFunc(addrs, r.Contains) })
}

// ParseRange parses one address, `first..last`, or a CIDR.
func ParseRange(s string) (Range, error) {
	if from, to, found := strings.Cut(s, ".."); found {
		return parseBounds(s, from, to)
	}
	if strings.Contains(s, "/") {
		prefix, err := ParseCIDR(s)
		if err != nil {
			return Range{}, err
		}
		return RangeOf(prefix), nil
	}
	addr, err := ParseAddr(s)
	return Range{From: addr, To: addr}, err
}

// ParseRanges parses each element of a list with ParseRange.
func ParseRanges(list []string) ([]Range, error) {
	ranges := make([]Range, 0, len(list))
	for _, s := range list {
		r, err := ParseRange(s)
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// Count returns the number of addresses, exact up to 2^53.
func Count(ranges []Range) float64 {
	total := new(big.Int)
	for _, r := range ranges {
		from, to := new(big.Int).SetBytes(r.From.AsSlice()), new(big.Int).SetBytes(r.To.AsSlice())
		total.Add(total, to.Sub(to, from)).Add(total, big.NewInt(1))
	}
	f, _ := new(big.Float).SetInt(total).Float64()
	return f
}

// LastAddr returns the last address of a prefix: for IPv4 the broadcast address.
func LastAddr(prefix netip.Prefix) netip.Addr {
	first := prefix.Masked().Addr()
	bytes := first.AsSlice()
	for bit := prefix.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

func parseBounds(s, from, to string) (Range, error) {
	var r Range
	var err error
	if r.From, err = ParseAddr(from); err != nil {
		return Range{}, fmt.Errorf("range %q: %w", s, err)
	}
	if r.To, err = ParseAddr(to); err != nil {
		return Range{}, fmt.Errorf("range %q: %w", s, err)
	}
	if r.From.BitLen() != r.To.BitLen() {
		return Range{}, fmt.Errorf("range %q is of two families", s)
	}
	if r.To.Less(r.From) {
		return Range{}, fmt.Errorf("range %q ends before it begins: write the lower address first", s)
	}
	return r, nil
}
