// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"math"
	"net/netip"

	"github.com/kiln-net/kiln/internal/ipfamily"
)

// none is no slot.
const none int32 = -1

// slot is an address that is held, or was. Slots of released addresses form a list for each area, the longest free first.
type slot struct {
	addr       netip.Addr
	port       string // who holds it; empty in a released slot
	prev, next int32  // neighbours in the list of released slots; next also links unused slots
	area       int32  // whose addresses ports get unasked, or nowhere
	derived    bool   // the port has the MAC address that follows from the address
}

// pool is the addresses of one family of a subnet. The subnet's lock guards it.
type pool struct {
	spans

	slots  []slot
	index  map[netip.Addr]int32 // held and released addresses
	unused int32                // first of the slots that stand for no address
	areas  []area               // as spans.parts
	held   int
}

// area is a part of a pool from which addresses are given.
type area struct {
	part

	oldest, newest int32 // ends of the list of released slots
	released       int
	held           int

	// A cursor goes round allowed once and gives out what has no slot: addresses that no port held yet.
	cursor  netip.Addr
	at      int // of cursor in allowed
	origin  netip.Addr
	started bool // the cursor has given out an address
	around  bool // the cursor is back at origin
}

func newPool() pool { return pool{index: map[netip.Addr]int32{}, unused: none} }

// setSpans changes what ports can have. Held addresses stay held; areas are known by their names.
func (p *pool) setSpans(s spans) {
	p.spans = s
	next := make([]area, len(s.parts))
	kept := make([]int32, len(p.areas)) // where each area is from now on
	for i := range kept {
		kept[i] = nowhere
	}
	for i, part := range s.parts {
		next[i] = area{part: part, oldest: none, newest: none}
		for j := range p.areas {
			if p.areas[j].name == part.name {
				kept[j] = int32(i)
			}
		}
	}
	for i := range p.slots {
		sl := &p.slots[i]
		if !sl.addr.IsValid() {
			continue
		}
		is := p.partAt(sl.addr)
		if sl.port == "" && (is == nowhere || kept[sl.area] != is) {
			p.unlink(int32(i))
			p.drop(int32(i))
			continue
		}
		if sl.port != "" && is != nowhere {
			next[is].held++
		}
	}
	for j, i := range kept {
		if i == nowhere {
			continue
		}
		was := p.areas[j]
		next[i].oldest, next[i].newest, next[i].released, next[i].cursor = was.oldest, was.newest, was.released, was.cursor
	}
	p.areas = next
	for i := range p.slots {
		if p.slots[i].addr.IsValid() {
			p.slots[i].area = p.partAt(p.slots[i].addr)
		}
	}
	for i := range p.areas {
		p.areas[i].aim(p.areas[i].cursor)
	}
}

// keepReleased is how many released addresses an area remembers before it gives them again instead of fresh ones, unless more are
// held: it bounds the memory of a large subnet whose ports come and go.
const keepReleased = 4096

// maxAvoided is how many addresses that a port is to avoid are looked at in a row before none is found for it.
const maxAvoided = 256

// take gives the port an address of an area that it did not ask for, or none. It gives none for which avoid, which may be nil, is true. A call that
// finds only such addresses leaves them for last, so that the next call looks at others.
func (p *pool) take(port string, at int32, avoid func(netip.Addr) bool) int32 {
	a := &p.areas[at]
	if i := p.takeFresh(port, at, avoid, max(keepReleased, a.held)); i != none {
		return i
	}
	if i := p.takeReleased(port, at, avoid); i != none || avoid == nil {
		return i
	}
	return p.takeFresh(port, at, avoid, math.MaxInt) // released addresses, all to be avoided, must not keep the cursor where it is
}

// takeFresh takes an address that no port held yet, while fewer than limit released ones are remembered.
func (p *pool) takeFresh(port string, at int32, avoid func(netip.Addr) bool, limit int) int32 {
	a := &p.areas[at]
	for avoided := 0; !a.around && a.released < limit && avoided < maxAvoided; {
		addr := a.cursor
		a.advance()
		if _, known := p.index[addr]; known {
			continue
		}
		a.started = true
		if avoid == nil || !avoid(addr) {
			return p.add(addr, at, port)
		}
		avoided++
		p.setAside(addr, at)
	}
	return none
}

// takeReleased takes the address that is free for longest. Those to be avoided come to the end of the list.
func (p *pool) takeReleased(port string, at int32, avoid func(netip.Addr) bool) int32 {
	a := &p.areas[at]
	for range min(a.released, maxAvoided) {
		i := a.oldest
		avoided := avoid != nil && avoid(p.slots[i].addr)
		p.unlink(i)
		if !avoided {
			p.hold(i, port)
			return i
		}
		p.link(i)
	}
	return none
}

// setAside puts an address that no port held yet among the released ones.
func (p *pool) setAside(addr netip.Addr, at int32) { p.free(p.add(addr, at, "")) }

// takeThis gives the port this address, or none and who holds it.
func (p *pool) takeThis(addr netip.Addr, port string) (int32, string) {
	i, known := p.index[addr]
	if !known {
		return p.add(addr, p.partAt(addr), port), ""
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
	if at := p.partAt(addr); at != nowhere {
		if a := &p.areas[at]; !a.started && !addr.Less(a.cursor) {
			a.aim(addr.Next())
		}
	}
}

// free releases a slot. Addresses that ports get unasked come to the end of the list of released ones.
func (p *pool) free(i int32) {
	s := &p.slots[i]
	s.port, s.derived = "", false
	p.held--
	if s.area == nowhere {
		p.drop(i)
		return
	}
	p.areas[s.area].held--
	p.link(i)
}

// link puts a slot at the end of the list of released ones.
func (p *pool) link(i int32) {
	s := &p.slots[i]
	a := &p.areas[s.area]
	s.prev, s.next = a.newest, none
	if a.newest == none {
		a.oldest = i
	} else {
		p.slots[a.newest].next = i
	}
	a.newest = i
	a.released++
}

// add makes a slot for an address that has none.
func (p *pool) add(addr netip.Addr, at int32, port string) int32 {
	i := p.unused
	if i == none {
		i = int32(len(p.slots)) //nolint:gosec // one for each held or remembered address, which are far fewer
		p.slots = append(p.slots, slot{})
	} else {
		p.unused = p.slots[i].next
	}
	p.slots[i].addr, p.slots[i].area = addr, at
	p.index[addr] = i
	p.hold(i, port)
	return i
}

func (p *pool) hold(i int32, port string) {
	s := &p.slots[i]
	s.port, s.prev, s.next = port, none, none
	p.held++
	if s.area != nowhere {
		p.areas[s.area].held++
	}
}

// drop forgets a slot that is not in the list of released ones.
func (p *pool) drop(i int32) {
	delete(p.index, p.slots[i].addr)
	p.slots[i] = slot{prev: none, next: p.unused}
	p.unused = i
}

func (p *pool) unlink(i int32) {
	a := &p.areas[p.slots[i].area]
	prev, next := p.slots[i].prev, p.slots[i].next
	if prev == none {
		a.oldest = next
	} else {
		p.slots[prev].next = next
	}
	if next == none {
		a.newest = prev
	} else {
		p.slots[next].prev = prev
	}
	a.released--
}

// aim puts the cursor on an address, or on the next one that is allowed, and begins its round there.
func (a *area) aim(addr netip.Addr) {
	a.around = len(a.allowed) == 0
	if a.around {
		return
	}
	at, inside := 0, false
	if addr.IsValid() {
		at, inside = find(a.allowed, addr)
	}
	if at == len(a.allowed) {
		at = 0
	}
	a.at, a.cursor = at, addr
	if !inside {
		a.cursor = a.allowed[at].From
	}
	a.origin = a.cursor
}

func (a *area) advance() {
	if a.cursor == a.allowed[a.at].To {
		a.at = (a.at + 1) % len(a.allowed)
		a.cursor = a.allowed[a.at].From
	} else {
		a.cursor = a.cursor.Next()
	}
	a.around = a.cursor == a.origin
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

// areaOf is the index of a pool's area; nowhere when the subnet has none of that name.
func (p *pool) areaOf(name string) int32 {
	for i := 1; i < len(p.areas); i++ {
		if p.areas[i].name == name {
			return int32(i)
		}
	}
	return nowhere
}

// available counts the addresses that ports can still get, of some pool or unasked.
func (p *pool) available() float64 {
	left := p.size
	for i := range p.areas {
		left -= float64(p.areas[i].held)
	}
	return left
}

// heldRanges are those held addresses that are meant, in order, and how many they are.
func (p *pool) heldRanges(meant func(*slot) bool) ([]ipfamily.Range, int) {
	addrs := make([]netip.Addr, 0, p.held)
	for i := range p.slots {
		if s := &p.slots[i]; s.port != "" && meant(s) {
			addrs = append(addrs, s.addr)
		}
	}
	n := len(addrs)
	return merge(addrs), n
}
