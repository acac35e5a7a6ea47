// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Holder is an address and the port that holds it.
type Holder struct {
	Address netip.Addr
	Port    string
}

// String is `address (port)`.
func (h Holder) String() string { return h.Address.String() + " (" + h.Port + ")" }

// Holders returns the held addresses of a subnet that meant selects, in order. It iterates over all held addresses.
func (a *Allocator) Holders(subnet string, meant func(netip.Addr) bool) []Holder {
	s := a.subnet(subnet)
	if s == nil {
		return nil
	}
	s.Lock()
	defer s.Unlock()
	return s.holders(func(h Holder) bool { return meant(h.Address) })
}

func (s *subnet) holders(meant func(Holder) bool) []Holder {
	var holders []Holder
	for family := range s.pools {
		for _, slot := range s.pools[family].slots {
			if h := (Holder{Address: slot.addr, Port: slot.port}); h.Port != "" && meant(h) {
				holders = append(holders, h)
			}
		}
	}
	slices.SortFunc(holders, func(a, b Holder) int { return a.Address.Compare(b.Address) })
	return holders
}

// Holder returns the port that holds an address of a subnet; empty if there is none.
func (a *Allocator) Holder(subnet string, addr netip.Addr) string {
	s := a.subnet(subnet)
	if s == nil {
		return ""
	}
	s.Lock()
	defer s.Unlock()
	p := &s.pools[ipfamily.Of(addr)]
	slot, known := p.index[addr]
	if !known {
		return ""
	}
	return p.slots[slot].port
}
