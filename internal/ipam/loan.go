// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/kiln-net/kiln/internal/ipfamily"
)

// loan is whose slots a port has. While it lasts the slots name the borrower, and the lender's holding has them, too.
type loan struct {
	lender string
	slots  [2]int32 // by family
}

// borrow gives a port an address that the lender holds.
func (s *subnet) borrow(family ipfamily.Family, addr netip.Addr, lender, port string) (int32, error) {
	p := &s.pools[family]
	i, known := p.index[addr]
	switch {
	case !known || p.slots[i].port == "":
		return none, fmt.Errorf("%w: %s", ErrNotHeld, addr)
	case p.slots[i].port != lender:
		return none, &TakenError{Address: addr, By: p.slots[i].port}
	}
	return s.lend(family, addr, lender, port), nil
}

// lend gives an address that the lender holds to a borrower.
func (s *subnet) lend(family ipfamily.Family, addr netip.Addr, lender, borrower string) int32 {
	p := &s.pools[family]
	i := p.index[addr]
	p.slots[i].port = borrower
	l, ok := s.loans[borrower]
	if !ok {
		l = loan{lender: lender, slots: [2]int32{none, none}}
	}
	l.slots[family] = i
	if s.loans == nil {
		s.loans = map[string]loan{}
	}
	s.loans[borrower] = l
	return i
}

// passMAC notes that a MAC address which one port has is another's.
func (s *subnet) passMAC(mac net.HardwareAddr, from, to string) {
	if len(mac) == 6 && s.macs[[6]byte(mac)] == from {
		s.macs[[6]byte(mac)] = to
	}
}

// lenderOf is of whom a port has a slot; empty when it is the port's own.
func (s *subnet) lenderOf(borrower string, family int, slot int32) string {
	if l, ok := s.loans[borrower]; ok && l.slots[family] == slot {
		return l.lender
	}
	return ""
}

// endLoan forgets that a borrower's address of a family is another's.
func (s *subnet) endLoan(borrower string, family int) {
	l, ok := s.loans[borrower]
	if !ok {
		return
	}
	l.slots[family] = none
	s.loans[borrower] = l
	if l.slots == [2]int32{none, none} {
		delete(s.loans, borrower)
	}
}

// borrower is who has the addresses of a holding; empty when the holder itself has them.
func (s *subnet) borrower(port string, h holding) string {
	for family, i := range h.slots {
		if i != none && s.pools[family].slots[i].port != port {
			return s.pools[family].slots[i].port
		}
	}
	return ""
}

// Borrower is who has what a holder lends, and empty when nobody does.
func (a *Allocator) Borrower(holder string) string {
	sh := a.shard(holder)
	sh.Lock()
	defer sh.Unlock()
	h, ok := sh.ports[holder]
	if !ok {
		return ""
	}
	h.subnet.Lock()
	defer h.subnet.Unlock()
	return h.subnet.borrower(holder, h)
}
