// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// sharedAllocation has the slots of an owner's allocation that a port uses. Meanwhile the slots name the user as port; the owner's holding has
// them, too.
type sharedAllocation struct {
	owner string
	slots [2]int32 // by family
}

// useShared makes a port the user of an owner's address. It returns an error if the owner does not hold the address.
func (s *subnet) useShared(family ipfamily.Family, addr netip.Addr, owner, port string) (int32, error) {
	p := &s.pools[family]
	i, known := p.index[addr]
	switch {
	case !known || p.slots[i].port == "":
		return none, fmt.Errorf("%w: %s", ErrNotHeld, addr)
	case p.slots[i].port != owner:
		return none, &TakenError{Address: addr, By: p.slots[i].port}
	}
	return s.share(family, addr, owner, port), nil
}

// share makes a port the user of an owner's address. The caller has checked that the owner holds it.
func (s *subnet) share(family ipfamily.Family, addr netip.Addr, owner, user string) int32 {
	p := &s.pools[family]
	i := p.index[addr]
	p.slots[i].port = user
	l, ok := s.shared[user]
	if !ok {
		l = sharedAllocation{owner: owner, slots: [2]int32{none, none}}
	}
	l.slots[family] = i
	if s.shared == nil {
		s.shared = map[string]sharedAllocation{}
	}
	s.shared[user] = l
	return i
}

// endSharing deletes the slot of a user's shared allocation in a family.
func (s *subnet) endSharing(user string, family int) {
	l, ok := s.shared[user]
	if !ok {
		return
	}
	l.slots[family] = none
	s.shared[user] = l
	if l.slots == [2]int32{none, none} {
		delete(s.shared, user)
	}
}

// userOf returns the port that uses addresses of a holding; empty if there is none.
func (s *subnet) userOf(port string, h holding) string {
	for family, i := range h.slots {
		if i != none && s.pools[family].slots[i].port != port {
			return s.pools[family].slots[i].port
		}
	}
	return ""
}

// UserOf returns the port that uses the holder's addresses by a shared allocation; empty if there is none.
func (a *Allocator) UserOf(holder string) string {
	sh := a.shard(holder)
	sh.Lock()
	defer sh.Unlock()
	h, ok := sh.ports[holder]
	if !ok {
		return ""
	}
	h.subnet.Lock()
	defer h.subnet.Unlock()
	return h.subnet.userOf(holder, h)
}
