// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"

	"github.com/kiln-net/kiln/internal/ipfamily"
)

// none is no slot.
const none int32 = -1

// slot is an address that is held, or was. Slots of released addresses form a list, the longest free first.
type slot struct {
	addr       netip.Addr
	port       string // who holds it; empty in a released slot
	prev, next int32  // neighbours in the list of released slots; next also links unused slots
	allowed    bool   // ports get the address unasked
	derived    bool   // the port has the MAC address that follows from the address
}

// pool is the addresses of one family of a subnet. The subnet's lock guards it.
type pool struct {
	spans

	slots  []slot
	index  map[netip.Addr]int32 // held and released addresses
	unused int32                // first of the slots that stand for no address

	oldest, newest int32 // ends of the list of released slots
	released       int
	held           int
	heldAllowed    int // those of held that ports get unasked

	// A cursor goes round allowed once and gives out what has no slot: addresses that no port held yet.
	cursor  netip.Addr
	at      int // of cursor in allowed
	origin  netip.Addr
	started bool // the cursor has given out an address
	around  bool // the cursor is back at origin
}

func newPool() pool {
	return pool{index: map[netip.Addr]int32{}, unused: none, oldest: none, newest: none}
}

// setSpans changes what ports can have. Held addresses stay held.
func (p *pool) setSpans(s spans) {
	p.spans = s
	p.heldAllowed = 0
	for i := range p.slots {
		sl := &p.slots[i]
		sl.allowed = sl.addr.IsValid() && p.allows(sl.addr)
		switch {
		case !sl.addr.IsValid():
		case sl.port != "" && sl.allowed:
			p.heldAllowed++
		case sl.port == "" && !sl.allowed:
			p.unlink(int32(i))
			p.drop(int32(i))
		}
	}
	p.started = false
	p.aim(p.cursor)
}

// keepReleased is how many released addresses a pool remembers before it gives them again instead of fresh ones, unless more are
// held: it bounds the memory of a large subnet whose ports come and go.
const keepReleased = 4096

// take gives the port an address that it did not ask for, or none.
func (p *pool) take(port string) int32 {
	for !p.around && p.released < max(keepReleased, p.held) {
		addr := p.cursor
		p.advance()
		if _, known := p.index[addr]; !known {
			p.started = true
			return p.add(addr, true, port)
		}
	}
	if p.oldest == none {
		return none
	}
	i := p.oldest
	p.unlink(i)
	p.hold(i, port)
	return i
}

// takeThis gives the port this address, or none and who holds it.
func (p *pool) takeThis(addr netip.Addr, port string) (int32, string) {
	i, known := p.index[addr]
	if !known {
		return p.add(addr, p.allows(addr), port), ""
	}
	if by := p.slots[i].port; by != "" {
		return none, by
	}
	p.unlink(i)
	p.hold(i, port)
	return i, ""
}

// passed has the cursor start after an address from before the start of this process, so that those released back then, which are most
// likely below it, come last.
func (p *pool) passed(addr netip.Addr) {
	if !p.started && p.allows(addr) && !addr.Less(p.cursor) {
		p.aim(addr.Next())
	}
}

// free releases a slot. Addresses that ports get unasked come to the end of the list of released ones.
func (p *pool) free(i int32) {
	s := &p.slots[i]
	s.port, s.derived = "", false
	p.held--
	if !s.allowed {
		p.drop(i)
		return
	}
	p.heldAllowed--
	s.prev, s.next = p.newest, none
	if p.newest == none {
		p.oldest = i
	} else {
		p.slots[p.newest].next = i
	}
	p.newest = i
	p.released++
}

// add makes a slot for an address that has none.
func (p *pool) add(addr netip.Addr, allowed bool, port string) int32 {
	i := p.unused
	if i == none {
		i = int32(len(p.slots))
		p.slots = append(p.slots, slot{})
	} else {
		p.unused = p.slots[i].next
	}
	p.slots[i].addr, p.slots[i].allowed = addr, allowed
	p.index[addr] = i
	p.hold(i, port)
	return i
}

func (p *pool) hold(i int32, port string) {
	s := &p.slots[i]
	s.port, s.prev, s.next = port, none, none
	p.held++
	if s.allowed {
		p.heldAllowed++
	}
}

// drop forgets a slot that is not in the list of released ones.
func (p *pool) drop(i int32) {
	delete(p.index, p.slots[i].addr)
	p.slots[i] = slot{prev: none, next: p.unused}
	p.unused = i
}

func (p *pool) unlink(i int32) {
	prev, next := p.slots[i].prev, p.slots[i].next
	if prev == none {
		p.oldest = next
	} else {
		p.slots[prev].next = next
	}
	if next == none {
		p.newest = prev
	} else {
		p.slots[next].prev = prev
	}
	p.released--
}

// aim puts the cursor on an address, or on the next one that is allowed, and begins its round there.
func (p *pool) aim(addr netip.Addr) {
	p.around = len(p.allowed) == 0
	if p.around {
		return
	}
	at, inside := 0, false
	if addr.IsValid() {
		at, inside = p.span(addr)
	}
	if at == len(p.allowed) {
		at = 0
	}
	p.at, p.cursor = at, addr
	if !inside {
		p.cursor = p.allowed[at].From
	}
	p.origin = p.cursor
}

func (p *pool) advance() {
	if p.cursor == p.allowed[p.at].To {
		p.at = (p.at + 1) % len(p.allowed)
		p.cursor = p.allowed[p.at].From
	} else {
		p.cursor = p.cursor.Next()
	}
	p.around = p.cursor == p.origin
}

// enabled reports whether the subnet has a CIDR of the pool's family.
func (p *pool) enabled() bool { return p.usable.From.IsValid() }

// canHold reports whether a port may ask for the address.
func (p *pool) canHold(addr netip.Addr) bool { return p.enabled() && p.usable.Contains(addr) }

// holderOfDerived is who holds an address together with the MAC address that follows from it; nobody when it is the empty string.
func (p *pool) holderOfDerived(addr netip.Addr) string {
	if i, known := p.index[addr]; known && p.slots[i].derived {
		return p.slots[i].port
	}
	return ""
}

// available counts the addresses that ports can still get unasked.
func (p *pool) available() float64 { return p.size - float64(p.heldAllowed) }

// heldRanges are the held addresses, in order.
func (p *pool) heldRanges() []ipfamily.Range {
	addrs := make([]netip.Addr, 0, p.held)
	for _, s := range p.slots {
		if s.port != "" {
			addrs = append(addrs, s.addr)
		}
	}
	return merge(addrs)
}
