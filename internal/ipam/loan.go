// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/kiln-net/kiln/internal/ipfamily"
)

// loan records the slots that a port borrows. During a loan the slots name the borrower as port; the lender's holding has them,
// too.
type loan struct {
	lender string
	slots  [2]int32 // by family
}

// borrow lends an address of the lender to a port. It returns an error if the lender does not hold the address.
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

// lend lends an address to a borrower. The caller has checked that the lender may do so.
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

// passMAC changes the recorded holder of a MAC address, if it is the expected one.
func (s *subnet) passMAC(mac net.HardwareAddr, from, to string) {
	if len(mac) == 6 && s.macs[[6]byte(mac)] == from {
		s.macs[[6]byte(mac)] = to
	}
}

// lenderOf returns the lender of a port's slot; empty if the port has not borrowed it.
func (s *subnet) lenderOf(borrower string, family int, slot int32) string {
	if l, ok := s.loans[borrower]; ok && l.slots[family] == slot {
		return l.lender
	}
	return ""
}

// endLoan deletes the record of a borrower's loan in a family.
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

// borrower returns the port that has borrowed addresses of a holding; empty if there is none.
func (s *subnet) borrower(port string, h holding) string {
	for family, i := range h.slots {
		if i != none && s.pools[family].slots[i].port != port {
			return s.pools[family].slots[i].port
		}
	}
	return ""
}

// Borrower returns the port that has borrowed the holder's addresses; empty if there is none.
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
