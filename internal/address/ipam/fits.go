// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// fits reports whether a port's holding h, whose allocation is l, satisfies w.
func (s *subnet) fits(port string, h holding, l Allocation, w want) bool {
	if (w.asIs || len(w.MAC) > 0) && !bytes.Equal(w.MAC, l.MAC) {
		return false
	}
	for _, addr := range w.Addresses {
		if !slices.Contains(l.Addresses, addr) {
			return false
		}
	}
	if w.asIs {
		return len(w.Addresses) == len(l.Addresses)
	}
	if s.shared[port].owner != w.SharedBy {
		return false
	}
	if !s.fitsPools(h, w.Request) {
		return false
	}
	if len(w.Families) == 0 {
		return true
	}
	for family, i := range h.slots {
		if (i != none) != s.wants(w.Request, ipfamily.Family(family)) {
			return false
		}
	}
	return true
}

// fitsPools reports whether the addresses that the request does not name are in pools that the request may use. An address that
// the subnet excluded later still fits the pool that lists it, so that its port keeps it.
func (s *subnet) fitsPools(h holding, r Request) bool {
	if r.AnyPool {
		return true
	}
	for family, i := range h.slots {
		if i == none {
			continue
		}
		p := &s.pools[family]
		sl := &p.slots[i]
		switch {
		case slices.Contains(r.Addresses, sl.addr):
		case sl.area == nowhere && s.namedByPool(r.Pools, sl.addr):
		case sl.area > 0 && !slices.Contains(r.Pools, p.areas[sl.area].name), sl.area <= 0 && p.ofPools(r.Pools):
			return false
		}
	}
	return true
}

// namedByPool reports whether the ranges of one of these pools contain the address, which may be excluded.
func (s *subnet) namedByPool(names []string, addr netip.Addr) bool {
	return slices.ContainsFunc(s.set, func(p Pool) bool {
		return slices.Contains(names, p.Name) && ipfamily.InAny(p.Ranges, addr)
	})
}

// ofPools reports whether a request for these pools gets its address of the family from them. One pool with ranges of the
// family is enough, even if all their addresses are excluded: then the request fails, instead of getting an address outside its
// pools.
func (p *pool) ofPools(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		at := p.areaOf(name)
		return at != nowhere && p.areas[at].hasFamily
	})
}

// wants reports whether the request needs an address of the family.
func (s *subnet) wants(r Request, family ipfamily.Family) bool {
	return len(r.Families) == 0 && s.pools[family].enabled() || slices.Contains(r.Families, family) ||
		slices.ContainsFunc(r.Addresses, func(a netip.Addr) bool { return ipfamily.Of(a) == family })
}
