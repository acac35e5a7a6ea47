// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// takeMAC allocates the requested MAC address, or one derived from the first address.
func (s *subnet) takeMAC(port string, r Request, h holding) ([6]byte, error) {
	if len(r.MAC) == 6 {
		mac := [6]byte(r.MAC)
		switch by := s.macHolder(mac); {
		case by != "" && r.SharedBy != "" && (by == r.SharedBy || by == port): // the MAC address passes to the user with the addresses
			return mac, nil
		case by != "":
			return noMAC, &TakenError{MAC: slices.Clone(r.MAC), By: by}
		}
		s.holdMAC(port, mac, h)
		return mac, nil
	}
	first := s.firstAddress(h)
	for attempt := uint32(0); ; attempt++ {
		mac := ipfamily.MAC(first, attempt)
		if s.listedMAC(mac) == "" { // no port holds it as a MAC address that is not derived
			s.holdMAC(port, mac, h)
			return mac, nil
		}
	}
}

// holdMAC records the holder of a free MAC address. A MAC address derived from the holder's IPv4 address needs no entry in
// macs.
func (s *subnet) holdMAC(port string, mac [6]byte, h holding) {
	if addr, ok := ipfamily.OfMAC(mac); ok {
		if i := h.slots[ipfamily.IPv4]; i != none && s.pools[ipfamily.IPv4].slots[i].addr == addr {
			s.pools[ipfamily.IPv4].slots[i].derived = true
			return
		}
	}
	s.macs[mac] = port
}

// macHolder returns the holder of a MAC address: a port or the router.
func (s *subnet) macHolder(mac [6]byte) string {
	if by := s.listedMAC(mac); by != "" {
		return by
	}
	p := &s.pools[ipfamily.IPv4]
	if addr, ok := ipfamily.OfMAC(mac); ok {
		if i, known := p.index[addr]; known && p.slots[i].derived {
			return p.slots[i].port
		}
	}
	return ""
}

// listedMAC is macHolder without holders whose IPv4 address the MAC address derives from.
func (s *subnet) listedMAC(mac [6]byte) string {
	for i := range s.pools {
		if s.pools[i].gatewayMAC == mac {
			return ByGateway
		}
	}
	return s.macs[mac]
}

func (s *subnet) firstAddress(h holding) netip.Addr {
	for _, family := range s.order {
		if i := h.slots[family]; i != none {
			return s.pools[family].slots[i].addr
		}
	}
	return netip.Addr{}
}
