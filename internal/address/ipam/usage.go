// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Usage is the number of held and available addresses of a subnet, by family. A family without a CIDR is zero.
type Usage [2]FamilyUsage

// IPv4 is the usage of IPv4 addresses.
func (u Usage) IPv4() FamilyUsage { return u[ipfamily.IPv4] }

// IPv6 is the usage of IPv6 addresses.
func (u Usage) IPv6() FamilyUsage { return u[ipfamily.IPv6] }

// FamilyUsage is the usage of one family of a subnet. Counts are exact up to 2^53. Ranges have the form "a-b,c" and list at
// most MaxRanges ranges; "..." stands for the rest.
type FamilyUsage struct {
	// Available addresses are neither held nor excluded: ports can get them without an explicit request.
	Available       float64
	AvailableRanges string
	// Using counts the held addresses, including explicitly requested excluded ones.
	Using       float64
	UsingRanges string
}

// MaxRanges bounds the ranges in a Usage, so that the status of a fragmented subnet stays small.
const MaxRanges = 128

// Usage returns the usage of a subnet, zero for an unknown one. It sorts the held addresses, so callers should coalesce changes
// before a call.
func (a *Allocator) Usage(subnet string) Usage {
	var u Usage
	s := a.subnet(subnet)
	if s == nil {
		return u
	}
	s.Lock()
	defer s.Unlock()
	for family := range s.pools {
		p := &s.pools[family]
		held, n := p.heldRanges(func(*slot) bool { return true })
		u[family] = FamilyUsage{Using: float64(n), UsingRanges: format(held)}
		if p.enabled() {
			u[family].Available = p.available()
			u[family].AvailableRanges = format(without(p.allowed, held))
		}
	}
	return u
}

// Available returns the number of available addresses of a subnet, both families together, at most the number of ports that its
// switch can still have; 0 for an unknown subnet.
func (a *Allocator) Available(subnet string) (total float64) {
	s := a.subnet(subnet)
	if s == nil {
		return 0
	}
	s.Lock()
	defer s.Unlock()
	for family := range s.pools {
		if p := &s.pools[family]; p.enabled() {
			total += p.available()
		}
	}
	if u := s.portUsage(); u.Limit > 0 {
		total = min(total, float64(max(u.Limit-u.Used, 0)))
	}
	return total
}

// PoolUsage is Usage for a pool of a subnet. Addresses of the pool that are held and were excluded afterwards count as used.
func (a *Allocator) PoolUsage(subnet, pool string) Usage {
	var u Usage
	s := a.subnet(subnet)
	if s == nil {
		return u
	}
	s.Lock()
	defer s.Unlock()
	for family := range s.pools {
		p := &s.pools[family]
		at := p.areaOf(pool)
		if at == nowhere {
			continue
		}
		excluded := func(sl *slot) bool { return sl.area == nowhere && s.namedByPool([]string{pool}, sl.addr) }
		held, n := p.heldRanges(func(sl *slot) bool { return sl.area == at || excluded(sl) })
		u[family] = FamilyUsage{
			Using: float64(n), UsingRanges: format(held),
			Available: p.areas[at].size - float64(p.areas[at].held), AvailableRanges: format(without(p.areas[at].allowed, held)),
		}
	}
	return u
}

// merge sorts addresses and merges adjacent ones into ranges.
func merge(addrs []netip.Addr) []ipfamily.Range {
	slices.SortFunc(addrs, netip.Addr.Compare)
	var ranges []ipfamily.Range
	for _, addr := range addrs {
		if n := len(ranges); n > 0 && ranges[n-1].To.Next() == addr {
			ranges[n-1].To = addr
			continue
		}
		ranges = append(ranges, ipfamily.Range{From: addr, To: addr})
	}
	return ranges
}

// without subtracts holes from spans, both in order and disjoint. It stops when the result has more ranges than format lists.
func without(spans, holes []ipfamily.Range) []ipfamily.Range {
	var left []ipfamily.Range
	for _, span := range spans {
		for len(holes) > 0 && holes[0].To.Less(span.From) {
			holes = holes[1:]
		}
		within := 0
		for within < len(holes) && !span.To.Less(holes[within].From) {
			within++
		}
		left = append(left, subtract(span, holes[:within])...)
		if len(left) > MaxRanges {
			break
		}
	}
	return left
}

func format(ranges []ipfamily.Range) string {
	if len(ranges) <= MaxRanges {
		return ipfamily.Join(ranges)
	}
	return strings.Join([]string{ipfamily.Join(ranges[:MaxRanges]), "..."}, ",")
}
