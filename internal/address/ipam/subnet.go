// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// subnet is the state of one subnet. setLayout, isDivided, close, change and release take its lock; the other methods require it to
// be held.
type subnet struct {
	sync.Mutex
	name   string
	closed bool // deleted: refuses every allocation
	cidrs  []netip.Prefix
	spec   Subnet                      // the configuration of the current layout
	set    []Pool                      // the pools of the current layout
	order  []ipfamily.Family           // families of CIDRs in order; a family without CIDR is last
	pools  [2]pool                     // by family
	macs   map[[6]byte]string          // holders of MAC addresses that do not derive from the holder's IPv4 address
	shared map[string]sharedAllocation // by user
	ports  int                         // the holders' ports, see portsOf

	portLimit *atomic.Int64 // the allocator's
}

// holding is the compact form of a port's allocation. Without a subnet it is empty.
type holding struct {
	subnet *subnet
	slots  [2]int32 // by family
	mac    [6]byte
}

// noMAC is the MAC address of a port that was restored without one.
var noMAC [6]byte

func newSubnet(name string, portLimit *atomic.Int64) *subnet {
	return &subnet{name: name, pools: [2]pool{newPool(), newPool()}, macs: map[[6]byte]string{}, portLimit: portLimit}
}

// setLayout computes the layout again after a change of the spec or the pools. If inTheWay is not nil and selects held
// addresses, setLayout returns them and changes nothing.
func (s *subnet) setLayout(change func(*Subnet, *[]Pool), inTheWay func(Holder) bool) ([]Holder, error) {
	s.Lock()
	defer s.Unlock()
	spec, pools := s.spec, s.set
	change(&spec, &pools)
	l, err := newLayout(spec, pools)
	if err != nil {
		return nil, err
	}
	if inTheWay != nil {
		if held := s.holders(inTheWay); len(held) > 0 {
			return held, nil
		}
	}
	s.spec, s.set = spec, pools
	s.cidrs = l.cidrs
	s.order = l.order
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		if !slices.Contains(s.order, family) {
			s.order = append(s.order, family)
		}
		sp := l.spans[family]
		if sp.parts == nil {
			sp.divide(pools) // a family without CIDR has empty parts
		}
		s.pools[family].setSpans(sp)
	}
	return nil, nil
}

// isDivided reports whether the subnet already has these pools.
func (s *subnet) isDivided(pools []Pool) bool {
	s.Lock()
	defer s.Unlock()
	return slices.EqualFunc(s.set, pools, func(a, b Pool) bool { return a.Name == b.Name && slices.Equal(a.Ranges, b.Ranges) })
}

// close makes the subnet refuse all later changes, and returns the ports with a holding.
func (s *subnet) close() []string {
	s.Lock()
	defer s.Unlock()
	s.closed = true
	var ports []string
	for i := range s.pools {
		for _, slot := range s.pools[i].slots {
			if slot.port != "" {
				ports = append(ports, slot.port)
			}
		}
	}
	for _, l := range s.shared {
		ports = append(ports, l.owner)
	}
	return ports
}

// change makes the port hold the wanted allocation. old is its current holding, here or in another subnet. After an error the port
// holds the same addresses as before; if the returned holding is not zero, it replaces old.
func (s *subnet) change(port string, old holding, w want) (holding, Allocation, error) {
	s.Lock()
	defer s.Unlock()
	if s.closed {
		return holding{}, Allocation{}, ErrNoSubnet
	}
	var before Allocation
	has, here := 0, old.subnet == s
	if here {
		if before = s.allocation(old); s.fits(port, old, before, w) {
			return old, before, nil
		}
		has = portsOf(port, old)
	}
	if !w.asIs { // the switch may have the port of an allocation to restore already, so the limit of ports does not refuse it
		if err := s.admit(port, w.Request, has); err != nil {
			return holding{}, Allocation{}, err
		}
	}
	owner := s.shared[port].owner
	if here {
		s.free(port, old)
	}
	var h holding
	var err error
	if w.asIs {
		h, err = s.restore(port, w)
	} else {
		h, err = s.allocate(port, w.Request)
	}
	switch {
	case err == nil:
		s.ports += portsOf(port, h) - has
		return h, s.allocation(h), nil
	case !here:
		return holding{}, Allocation{}, err
	}
	// The lock was held throughout, so no other port can have taken the addresses.
	h, again := s.restore(port, want{Request: Request{Addresses: before.Addresses, MAC: before.MAC, SharedBy: owner}})
	return h, Allocation{}, errors.Join(err, again)
}

// release frees a port's holding in this subnet.
func (s *subnet) release(port string, h holding) {
	s.Lock()
	defer s.Unlock()
	s.ports -= portsOf(port, h)
	s.free(port, h)
}

func (s *subnet) allocation(h holding) Allocation {
	if h.subnet == nil {
		return Allocation{}
	}
	room := new(struct { // one allocation for both saves a fifth of the memory of an Allocate
		addresses [2]netip.Addr
		mac       [6]byte
	})
	l := Allocation{Subnet: s.name, Addresses: room.addresses[:0]}
	for _, family := range s.order {
		if i := h.slots[family]; i != none {
			l.Addresses = append(l.Addresses, s.pools[family].slots[i].addr)
		}
	}
	if h.mac != noMAC {
		room.mac = h.mac
		l.MAC = room.mac[:]
	}
	return l
}

// allocate returns a new holding, or an error without a change.
func (s *subnet) allocate(port string, r Request) (holding, error) {
	h := holding{subnet: s, slots: [2]int32{none, none}}
	if err := s.check(r); err != nil {
		return holding{}, err
	}
	for _, family := range s.order {
		if !s.wants(r, family) {
			continue
		}
		slot, err := s.takeOne(port, family, r)
		if err != nil {
			s.freeSlots(port, h)
			return holding{}, err
		}
		h.slots[family] = slot
	}
	mac, err := s.takeMAC(port, r, h)
	if err != nil {
		s.freeSlots(port, h)
		return holding{}, err
	}
	h.mac = mac
	return h, nil
}

// check returns an error for a request that the subnet can never satisfy.
func (s *subnet) check(r Request) error {
	if len(r.Addresses) > 2 || len(r.Addresses) == 2 && ipfamily.Of(r.Addresses[0]) == ipfamily.Of(r.Addresses[1]) {
		return fmt.Errorf("more than one address of a family is asked for: %s", ipfamily.Join(r.Addresses))
	}
	for _, addr := range r.Addresses {
		switch p := &s.pools[ipfamily.Of(addr)]; {
		case p.gateway == addr && p.enabled():
			return &TakenError{Address: addr, By: ByGateway}
		case !p.usable.Contains(addr): // a family without CIDR has none
			return &OutsideError{Address: addr, Subnet: s.name, CIDRs: s.cidrs}
		default:
			if at := p.partAt(addr); at > 0 && !r.AnyPool && !slices.Contains(r.Pools, p.areas[at].name) {
				return &TakenError{Address: addr, By: "IPPool " + p.areas[at].name}
			}
		}
	}
	for _, name := range r.Pools {
		if !slices.ContainsFunc(s.set, func(p Pool) bool { return p.Name == name }) {
			return fmt.Errorf("%w: %s", ErrNoPool, name)
		}
	}
	for _, family := range r.Families {
		if !s.pools[family].enabled() {
			return fmt.Errorf("%w: %s", ErrNoFamily, family)
		}
	}
	if len(r.MAC) != 0 && len(r.MAC) != 6 {
		return fmt.Errorf("%s is not a MAC address of 48 bits", r.MAC)
	}
	return nil
}

func (s *subnet) takeOne(port string, family ipfamily.Family, r Request) (int32, error) {
	p := &s.pools[family]
	for _, addr := range r.Addresses {
		if ipfamily.Of(addr) != family {
			continue
		}
		if r.SharedBy != "" {
			return s.useShared(family, addr, r.SharedBy, port)
		}
		slot, by := p.takeThis(addr, port)
		if slot == none {
			return none, &TakenError{Address: addr, By: by}
		}
		return slot, nil
	}
	if !p.ofPools(r.Pools) {
		if slot := p.take(port, 0, r.Avoid); slot != none {
			return slot, nil
		}
		return none, &ExhaustedError{Family: family}
	}
	for _, name := range r.Pools {
		if at := p.areaOf(name); at != nowhere {
			if slot := p.take(port, at, r.Avoid); slot != none {
				return slot, nil
			}
		}
	}
	return none, &ExhaustedError{Family: family, Pools: r.Pools}
}

// restore returns a holding of exactly these addresses, or an error without a change. With shares, ports that already hold
// some of the addresses become their users.
func (s *subnet) restore(port string, l want) (holding, error) {
	h := holding{subnet: s, slots: [2]int32{none, none}}
	if len(l.MAC) != 0 && len(l.MAC) != 6 {
		return holding{}, fmt.Errorf("%s is not a MAC address of 48 bits", l.MAC)
	}
	for _, addr := range l.Addresses {
		family := ipfamily.Of(addr)
		if h.slots[family] != none {
			s.freeSlots(port, h)
			return holding{}, fmt.Errorf("more than one address of a family: %s", ipfamily.Join(l.Addresses))
		}
		slot, by := s.pools[family].takeThis(addr, port)
		switch {
		case slot == none && l.shares:
			slot = s.share(family, addr, port, by)
			if len(l.MAC) == 6 && s.macs[[6]byte(l.MAC)] == by {
				s.macs[[6]byte(l.MAC)] = port
			}
		case slot == none && l.SharedBy != "" && by == l.SharedBy:
			slot = s.share(family, addr, by, port)
		case slot == none:
			s.freeSlots(port, h)
			return holding{}, &TakenError{Address: addr, By: by}
		}
		s.pools[family].passed(addr)
		h.slots[family] = slot
	}
	if len(l.MAC) == 6 {
		h.mac = [6]byte(l.MAC)
		if h.mac != noMAC && s.macHolder(h.mac) == "" {
			s.holdMAC(port, h.mac, h)
		}
	}
	return h, nil
}

func (s *subnet) free(port string, h holding) {
	s.freeSlots(port, h)
	if len(s.macs) > 0 && s.macs[h.mac] == port {
		delete(s.macs, h.mac)
	}
}

func (s *subnet) freeSlots(port string, h holding) {
	for family, i := range h.slots {
		if i == none {
			continue
		}
		p := &s.pools[family]
		switch used, isUser := s.shared[port]; {
		case p.slots[i].port != port: // the user of a shared allocation keeps it
			s.endSharing(p.slots[i].port, family)
		case isUser && used.slots[family] == i: // it returns to the owner
			p.slots[i].port = used.owner
			s.endSharing(port, family)
		default:
			p.free(i)
		}
	}
}
