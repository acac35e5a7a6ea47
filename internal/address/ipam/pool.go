// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"math"
	"net/netip"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// none is the index of no slot.
const none int32 = -1

// slot is a held or released address. The released slots of an area form a list, the one that has been free longest first.
type slot struct {
	addr       netip.Addr
	port       string // the holder; empty in a released slot
	prev, next int32  // neighbours in the list of released slots; next also links the free list of slots
	area       int32  // the area that contains the address, or nowhere
	derived    bool   // the holder's MAC address derives from the address
}

// pool holds the addresses of one family of a subnet. The subnet's lock guards it.
type pool struct {
	spans

	slots  []slot
	index  map[netip.Addr]int32 // held and released addresses
	unused int32                // head of the free list: slots without an address
	areas  []area               // same indexes as spans.parts
	held   int
}

// area is a part of a pool from which addresses are allocated.
type area struct {
	part

	oldest, newest int32 // ends of the list of released slots
	released       int
	held           int

	// The cursor iterates over allowed once. It returns fresh addresses, which have no slot because no port has held them yet.
	cursor  netip.Addr
	at      int // index in allowed of the range with the cursor
	origin  netip.Addr
	started bool // the cursor has yielded an address
	around  bool // the cursor is back at origin: no fresh addresses are left
}

func newPool() pool { return pool{index: map[netip.Addr]int32{}, unused: none} }

// setSpans changes the addresses that ports can have. Held addresses stay held. Areas with the same name keep their released
// addresses and cursor.
func (p *pool) setSpans(s spans) {
	p.spans = s
	next := make([]area, len(s.parts))
	kept := make([]int32, len(p.areas)) // new index of each area
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

// keepReleased is the number of released addresses that an area remembers before it uses them instead of fresh ones; the limit
// is the number of held addresses if that is larger. It bounds the memory of a large subnet with a high turnover of ports.
const keepReleased = 4096

// maxAvoided is the number of avoided addresses in a row after which the search for an address ends.
const maxAvoided = 256

// take allocates any address of an area to the port, or returns none. It skips addresses for which avoid returns true; avoid
// may be nil. If a call finds only such addresses, it moves them to the end, so that the next call checks others.
func (p *pool) take(port string, at int32, avoid func(netip.Addr) bool) int32 {
	a := &p.areas[at]
	if i := p.takeFresh(port, at, avoid, max(keepReleased, a.held)); i != none {
		return i
	}
	if i := p.takeReleased(port, at, avoid); i != none || avoid == nil {
		return i
	}
	return p.takeFresh(port, at, avoid, math.MaxInt) // continue with fresh addresses even if released ones, all avoided, exceed the limit
}

// takeFresh allocates an address that no port has held yet, while the area remembers fewer than limit released ones.
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
		p.free(p.add(addr, at, "")) // it becomes a released one
	}
	return none
}

// takeReleased allocates the address that has been free longest. It moves avoided addresses to the end of the list.
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

// takeThis allocates a given address to the port. If it is held, takeThis returns none and the holder.
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

// passed moves the cursor behind a restored address. Addresses that an earlier process released are most likely below it, so
// they are used last.
func (p *pool) passed(addr netip.Addr) {
	if at := p.partAt(addr); at != nowhere {
		if a := &p.areas[at]; !a.started && !addr.Less(a.cursor) {
			a.aim(addr.Next())
		}
	}
}

// free releases a slot. An address of an area is appended to the area's released ones; any other slot is dropped.
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

// link appends a slot to the list of released ones.
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

// add creates a slot for an address that has none.
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

// drop deletes a slot that is not in the list of released ones.
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

// aim moves the cursor to an address, or to the next allowed one, and starts its round there.
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

// areaOf returns the index of a pool's area, or nowhere if the subnet has no pool of that name.
func (p *pool) areaOf(name string) int32 {
	for i := 1; i < len(p.areas); i++ {
		if p.areas[i].name == name {
			return int32(i)
		}
	}
	return nowhere
}

// available returns the number of addresses that ports can still get without requesting one explicitly, in any pool or none.
func (p *pool) available() float64 {
	left := p.size
	for i := range p.areas {
		left -= float64(p.areas[i].held)
	}
	return left
}

// heldRanges returns the held addresses that meant selects, as ordered ranges, and their number.
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
