// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipam gives addresses of subnets to ports, in memory. An Allocator is rebuilt at start with SetSubnet and Restore.
//
// Costs do not depend on the size of a subnet: allocating and releasing take amortised constant time (a binary search over
// the excluded ranges included), and memory is in proportion to the addresses held at a time. Addresses that no port held
// yet are given first; released ones come after them, or once there are many, the longest free first.
package ipam

import (
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-net/kiln/internal/ipfamily"
)

// Subnet is what the allocator knows of a subnet.
type Subnet struct {
	// CIDRs, one per family, in the order that leases have.
	CIDRs []netip.Prefix
	// Gateways inside CIDRs; no port ever gets one.
	Gateways []netip.Addr
	// Exclude holds addresses that only an explicit request gets. Parts outside CIDRs mean nothing.
	Exclude []ipfamily.Range
}

// Pool sets a part of a subnet's addresses apart for those who name it. What the subnet excludes, and what is outside of its CIDRs, is of
// no pool.
type Pool struct {
	Name   string
	Ranges []ipfamily.Range
}

// Request says what a port needs.
type Request struct {
	Subnet string
	// Addresses that the port must get, at most one per family.
	Addresses []netip.Addr
	// Families to get an address of; nil means every family of the subnet.
	Families []ipfamily.Family
	// Pools to have addresses of, in order. A family of which none of their Ranges names an address, and without pools every family, gets
	// an address that is of no pool. ErrExhausted is the error when the named addresses are all held, excluded or of an earlier pool.
	Pools []string
	// AnyPool lets Addresses be of any pool.
	AnyPool bool
	// Lender is a holder whose addresses the port gets, all of those in Addresses, until they are released: then the lender alone has them
	// again. The MAC address may be the lender's, too.
	Lender string
	// Avoid is true for addresses that the port must not get unasked; nil avoids none. It is called with the subnet's lock held.
	Avoid func(netip.Addr) bool
	// MAC that the port must get; nil has it follow from the first address.
	MAC net.HardwareAddr
}

// Lease is what a port holds.
type Lease struct {
	Subnet string
	// Addresses, at most one per family, in the order of Subnet.CIDRs.
	Addresses []netip.Addr
	MAC       net.HardwareAddr
}

var (
	// ErrNoSubnet says that the allocator does not know the subnet.
	ErrNoSubnet = errors.New("no such subnet")
	// ErrExhausted says that every address of the subnet, or of the pools that a request names, is held or excluded.
	ErrExhausted = errors.New("no free address")
	// ErrNoPool says that the subnet has no pool of a name that is asked for.
	ErrNoPool = errors.New("no such IPPool in the subnet")
	// ErrNoFamily says that the subnet has no CIDR of a family that is asked for.
	ErrNoFamily = errors.New("subnet has no CIDR of this family")
	// ErrNotHeld says that nobody holds an address that a port is to borrow.
	ErrNotHeld = errors.New("nobody has this address to lend")
)

// TakenError is an address or a MAC address that something else holds.
type TakenError struct {
	// Address, or the invalid one when it is the MAC address that is taken.
	Address netip.Addr
	MAC     net.HardwareAddr
	// By is the port's name, or ByGateway.
	By string
}

// ByGateway stands for the subnet's router in TakenError.By.
const ByGateway = "gateway"

// Error says what is taken and by whom.
func (e *TakenError) Error() string {
	if e.Address.IsValid() {
		return fmt.Sprintf("address %s is taken by %s", e.Address, e.By)
	}
	return fmt.Sprintf("MAC address %s is taken by %s", e.MAC, e.By)
}

// ExhaustedError is the ErrExhausted of one family.
type ExhaustedError struct {
	Family ipfamily.Family
	// Pools that were asked for; without any it is what no pool sets apart that is exhausted.
	Pools []string
}

// Error says of what no address is free.
func (e *ExhaustedError) Error() string {
	if len(e.Pools) > 0 {
		return fmt.Sprintf("%v of family %s in IPPool %s", ErrExhausted, e.Family, strings.Join(e.Pools, ", "))
	}
	return fmt.Sprintf("%v of family %s", ErrExhausted, e.Family)
}

// Is has it be ErrExhausted.
func (e *ExhaustedError) Is(target error) bool { return target == ErrExhausted }

// OutsideError is an address that no port of the subnet can have: it is outside of its CIDRs, or it is the network, broadcast
// or subnet-router anycast address.
type OutsideError struct {
	Address netip.Addr
	Subnet  string
	CIDRs   []netip.Prefix
}

// Error says which address cannot be had and where it should be.
func (e *OutsideError) Error() string {
	return fmt.Sprintf("address %s is not one that a port of subnet %s (%s) can have", e.Address, e.Subnet, ipfamily.Join(e.CIDRs))
}

// Allocator gives addresses. It is safe for concurrent use: subnets have locks of their own.
//
// Locks are taken in the order shard, subnets, subnet.
type Allocator struct {
	seed   maphash.Seed
	shards [64]shard

	mu        sync.RWMutex // guards subnets and listeners
	subnets   map[string]*subnet
	listeners []func(subnet string)
}

// shard holds some of the ports. Its lock is held while one of them changes, so that changes of one port never mix.
type shard struct {
	sync.Mutex
	ports map[string]holding
}

// New gives an allocator without subnets.
func New() *Allocator {
	a := &Allocator{seed: maphash.MakeSeed(), subnets: map[string]*subnet{}}
	for i := range a.shards {
		a.shards[i].ports = map[string]holding{}
	}
	return a
}

// Notify has f called after each change of a subnet's use, with no lock held. f must not block.
func (a *Allocator) Notify(f func(subnet string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listeners = append(slices.Clip(a.listeners), f)
}

// SetSubnet makes a subnet known, or changes it. Leases stay as they are, those outside of the new CIDRs, too, and so do its pools.
func (a *Allocator) SetSubnet(name string, s Subnet) error {
	_, err := a.ChangeSubnet(name, s, nil)
	return err
}

// ChangeSubnet is SetSubnet, unless ports hold addresses that are in its way: then it changes nothing and gives these, in order. No port gets one
// in between. inTheWay may be nil; it is called with the subnet's lock held.
func (a *Allocator) ChangeSubnet(name string, s Subnet, inTheWay func(Holder) bool) ([]Holder, error) {
	if _, err := newLayout(s, nil); err != nil {
		return nil, fmt.Errorf("subnet %s: %w", name, err)
	}
	a.mu.Lock()
	sub, ok := a.subnets[name]
	if !ok {
		sub = newSubnet(name)
		a.subnets[name] = sub
	}
	a.mu.Unlock()
	return a.set(sub, func(spec *Subnet, _ *[]Pool) { *spec = s }, inTheWay)
}

// SetPools says how a subnet is divided. Of pools that overlap the first has what both name. Leases stay as they
// are, and pools that are so already are no change.
func (a *Allocator) SetPools(subnet string, pools []Pool) error {
	sub := a.subnet(subnet)
	if sub == nil {
		return fmt.Errorf("subnet %s: %w", subnet, ErrNoSubnet)
	}
	if sub.isDivided(pools) {
		return nil
	}
	_, err := a.set(sub, func(_ *Subnet, set *[]Pool) { *set = pools }, nil)
	return err
}

// Pools are the names of a subnet's pools.
func (a *Allocator) Pools(subnet string) []string {
	sub := a.subnet(subnet)
	if sub == nil {
		return nil
	}
	sub.Lock()
	defer sub.Unlock()
	var names []string
	for _, p := range sub.set {
		names = append(names, p.Name)
	}
	return names
}

func (a *Allocator) set(sub *subnet, change func(*Subnet, *[]Pool), inTheWay func(Holder) bool) ([]Holder, error) {
	held, err := sub.setLayout(change, inTheWay)
	if err != nil {
		return nil, fmt.Errorf("subnet %s: %w", sub.name, err)
	}
	if len(held) == 0 {
		a.changed(sub.name)
	}
	return held, nil
}

// DeleteSubnet forgets a subnet and every lease in it.
func (a *Allocator) DeleteSubnet(name string) {
	a.mu.Lock()
	sub, ok := a.subnets[name]
	delete(a.subnets, name)
	a.mu.Unlock()
	if !ok {
		return
	}
	for _, port := range sub.close() {
		sh := a.shard(port)
		sh.Lock()
		if sh.ports[port].subnet == sub {
			delete(sh.ports, port)
		}
		sh.Unlock()
	}
	a.changed(name)
}

// HasSubnet reports whether the subnet is known.
func (a *Allocator) HasSubnet(name string) bool { return a.subnet(name) != nil }

// Allocate gives the port what the request says, or nothing and an error. A port that holds a fitting lease gets it again; a lease
// that does not fit, because the request has changed, is replaced. A lease from before its subnet got another family still fits.
func (a *Allocator) Allocate(port string, r Request) (Lease, error) {
	return a.change(port, want{Request: r})
}

// Restore has the port hold a lease from before the start. It takes any address that no other port holds: excluded ones, and those
// that the CIDRs do not contain any more. A MAC address that two restored ports share stays with both.
func (a *Allocator) Restore(port string, l Lease) error {
	_, err := a.change(port, want{Request: Request{Subnet: l.Subnet, Addresses: l.Addresses, MAC: l.MAC}, asIs: true})
	return err
}

// RestoreLender is Restore of a holder that lends: those of its addresses which ports hold already are lent to them. Call it after they are
// restored.
func (a *Allocator) RestoreLender(holder string, l Lease) error {
	_, err := a.change(holder, want{Request: Request{Subnet: l.Subnet, Addresses: l.Addresses, MAC: l.MAC}, asIs: true, lends: true})
	return err
}

// Release frees what the port holds, if anything. What it has borrowed goes back, and what it has lent stays with who has it.
func (a *Allocator) Release(port string) {
	sh := a.shard(port)
	sh.Lock()
	h, ok := sh.ports[port]
	if ok {
		delete(sh.ports, port)
		h.subnet.release(port, h)
	}
	sh.Unlock()
	if ok {
		a.changed(h.subnet.name)
	}
}

// Lookup gives what the port holds.
func (a *Allocator) Lookup(port string) (Lease, bool) {
	sh := a.shard(port)
	sh.Lock()
	defer sh.Unlock()
	h, ok := sh.ports[port]
	if !ok {
		return Lease{}, false
	}
	return h.subnet.leaseOf(h)
}

// Fits reports whether what the port holds is what the request says, so that Allocate would change nothing.
func (a *Allocator) Fits(port string, r Request) bool {
	sh := a.shard(port)
	sh.Lock()
	defer sh.Unlock()
	h, ok := sh.ports[port]
	return ok && h.subnet.name == r.Subnet && h.subnet.holds(port, h, r)
}

// want is a request, or a lease to take as it is.
type want struct {
	Request
	asIs  bool
	lends bool
}

// change makes the port hold what is wanted. A holding in another subnet is released once that is done.
func (a *Allocator) change(port string, w want) (Lease, error) {
	sub := a.subnet(w.Subnet)
	if sub == nil {
		return Lease{}, fmt.Errorf("subnet %s: %w", w.Subnet, ErrNoSubnet)
	}
	sh := a.shard(port)
	sh.Lock()
	old := sh.ports[port]
	h, lease, err := sub.change(port, old, w)
	if h != old && h.subnet != nil {
		sh.ports[port] = h
	}
	moved := err == nil && old.subnet != nil && old.subnet != sub
	if moved {
		old.subnet.release(port, old)
	}
	sh.Unlock()
	if err != nil {
		return Lease{}, fmt.Errorf("subnet %s: port %s: %w", w.Subnet, port, err)
	}
	if moved {
		a.changed(old.subnet.name)
	}
	if h != old {
		a.changed(w.Subnet)
	}
	return lease, nil
}

func (a *Allocator) shard(port string) *shard {
	return &a.shards[maphash.String(a.seed, port)%uint64(len(a.shards))]
}

func (a *Allocator) subnet(name string) *subnet {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.subnets[name]
}

func (a *Allocator) changed(name string) {
	a.mu.RLock()
	listeners := a.listeners
	a.mu.RUnlock()
	for _, f := range listeners {
		f(name)
	}
}
