// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipam allocates addresses of subnets to ports, in memory. An Allocator is rebuilt at start with SetSubnet and Restore.
//
// Costs do not depend on the size of a subnet. Allocation and release take amortised constant time, apart from a binary search
// over the excluded ranges. Memory is proportional to the number of addresses held at a time. The allocator first uses fresh
// addresses, which no port has held yet. When none is left, or when it remembers many released addresses, it uses the address
// that has been free longest.
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
	"sync/atomic"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Subnet is the allocator's configuration of a subnet.
type Subnet struct {
	// CIDRs, one per family, in the order of addresses in allocations.
	CIDRs []netip.Prefix
	// Gateways are inside CIDRs and never allocated.
	Gateways []netip.Addr
	// Exclude holds addresses that are allocated only on explicit request. Parts outside CIDRs are ignored.
	Exclude []ipfamily.Range
	// OwnPorts is the number of ports of the switch that hold no address of the allocator, such as its port to the router.
	OwnPorts int
}

// Pool reserves a part of a subnet's addresses for requests that name the pool. Excluded addresses, and addresses outside the
// subnet's CIDRs, belong to no pool.
type Pool struct {
	Name   string
	Ranges []ipfamily.Range
}

// Request describes the allocation that a port needs.
type Request struct {
	Subnet string
	// Addresses that the port must get, at most one per family.
	Addresses []netip.Addr
	// Families of which the port gets an address; nil means every family of the subnet.
	Families []ipfamily.Family
	// Pools to allocate from, in order. For a family that none of their Ranges mentions, or if there are no pools, the port
	// gets an address of no pool. The error is ErrExhausted if all addresses of the pools are held, excluded or in an earlier
	// pool.
	Pools []string
	// AnyPool allows Addresses of any pool.
	AnyPool bool
	// SharedBy is a holder, the owner of a shared allocation: the port uses all of Addresses, which the owner holds too. When the port
	// releases them, the owner holds them alone again. The MAC address may be the owner's, too.
	SharedBy string
	// Avoid returns true for addresses that the port must not get unless it requests them; nil avoids none. It is called with
	// the subnet's lock held.
	Avoid func(netip.Addr) bool
	// MAC that the port must get; nil derives it from the first address.
	MAC net.HardwareAddr
}

// Allocation holds the addresses and the MAC address of a port.
type Allocation struct {
	Subnet string
	// Addresses, at most one per family, in the order of Subnet.CIDRs.
	Addresses []netip.Addr
	MAC       net.HardwareAddr
}

var (
	// ErrNoSubnet reports that the allocator has no such subnet.
	ErrNoSubnet = errors.New("no such subnet")
	// ErrExhausted reports that every address of the subnet, or of the requested pools, is held or excluded (ExhaustedError), or
	// that the switch has no room for another port (PortsError).
	ErrExhausted = errors.New("no free address")
	// ErrNoPool reports that the subnet has no pool with a requested name.
	ErrNoPool = errors.New("no such IPPool in the subnet")
	// ErrNoFamily reports that the subnet has no CIDR of a requested family.
	ErrNoFamily = errors.New("subnet has no CIDR of this family")
	// ErrNotHeld reports that no owner holds an address of a shared allocation.
	ErrNotHeld = errors.New("no owner shares this address")
)

// TakenError reports a conflict: another holder has the requested address or MAC address.
type TakenError struct {
	// Address is the zero Addr if the conflict is about the MAC address.
	Address netip.Addr
	MAC     net.HardwareAddr
	// By is the holder's name, ByGateway, or "IPPool NAME" if the address is in a pool that the request does not name.
	By string
}

// ByGateway is the value of TakenError.By for the subnet's router.
const ByGateway = "gateway"

// Error returns the address in conflict and its holder.
func (e *TakenError) Error() string {
	if e.Address.IsValid() {
		return fmt.Sprintf("address %s is taken by %s", e.Address, e.By)
	}
	return fmt.Sprintf("MAC address %s is taken by %s", e.MAC, e.By)
}

// ExhaustedError is ErrExhausted with the family.
type ExhaustedError struct {
	Family ipfamily.Family
	// Pools are the requested pools; if there are none, the addresses of no pool are exhausted.
	Pools []string
}

// Error returns the family and the pools without a free address.
func (e *ExhaustedError) Error() string {
	if len(e.Pools) > 0 {
		return fmt.Sprintf("%v of family %s in IPPool %s", ErrExhausted, e.Family, strings.Join(e.Pools, ", "))
	}
	return fmt.Sprintf("%v of family %s", ErrExhausted, e.Family)
}

// Is makes errors.Is(e, ErrExhausted) true.
func (e *ExhaustedError) Is(target error) bool { return target == ErrExhausted }

// OutsideError reports an address that no port of the subnet can have: it is outside the CIDRs, or it is the network, broadcast
// or subnet-router anycast address.
type OutsideError struct {
	Address netip.Addr
	Subnet  string
	CIDRs   []netip.Prefix
}

// Error returns the address and the CIDRs of the subnet.
func (e *OutsideError) Error() string {
	return fmt.Sprintf("address %s is not one that a port of subnet %s (%s) can have", e.Address, e.Subnet, ipfamily.Join(e.CIDRs))
}

// Allocator allocates addresses. It is safe for concurrent use; each subnet has its own lock.
//
// Lock order: shard, subnets, subnet.
type Allocator struct {
	seed      maphash.Seed
	shards    [64]shard
	portLimit atomic.Int64 // see LimitPorts

	mu        sync.RWMutex // guards subnets and listeners
	subnets   map[string]*subnet
	listeners []func(subnet string)
}

// shard holds some of the ports. Its lock is held during a change of one of them, which serializes the changes of a port.
type shard struct {
	sync.Mutex
	ports map[string]holding
}

// New returns an allocator without subnets.
func New() *Allocator {
	a := &Allocator{seed: maphash.MakeSeed(), subnets: map[string]*subnet{}}
	for i := range a.shards {
		a.shards[i].ports = map[string]holding{}
	}
	return a
}

// Notify registers f, which is called after each change of a subnet's usage, without a lock held. f must not block.
func (a *Allocator) Notify(f func(subnet string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listeners = append(slices.Clip(a.listeners), f)
}

// SetSubnet adds or changes a subnet. Existing allocations stay, even outside the new CIDRs, and so do the subnet's pools.
func (a *Allocator) SetSubnet(name string, s Subnet) error {
	_, err := a.ChangeSubnet(name, s, nil)
	return err
}

// ChangeSubnet is SetSubnet with a check for conflicts. If ports hold addresses for which inTheWay returns true, it changes
// nothing and returns them, in order. The check and the change are atomic. inTheWay may be nil; it is called with the subnet's
// lock held.
func (a *Allocator) ChangeSubnet(name string, s Subnet, inTheWay func(Holder) bool) ([]Holder, error) {
	if _, err := newLayout(s, nil); err != nil {
		return nil, fmt.Errorf("subnet %s: %w", name, err)
	}
	a.mu.Lock()
	sub, ok := a.subnets[name]
	if !ok {
		sub = newSubnet(name, &a.portLimit)
		a.subnets[name] = sub
	}
	a.mu.Unlock()
	return a.set(sub, func(spec *Subnet, _ *[]Pool) { *spec = s }, inTheWay)
}

// SetPools sets the pools of a subnet. An address in several pools belongs to the first. Existing allocations stay. Setting the same
// pools again changes nothing.
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

// Pools returns the names of a subnet's pools.
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

// DeleteSubnet deletes a subnet and every allocation in it.
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

// HasSubnet reports whether the allocator has the subnet.
func (a *Allocator) HasSubnet(name string) bool { return a.subnet(name) != nil }

// Allocate returns an allocation that satisfies the request, or an error. It is idempotent: a port keeps an allocation that still fits. A
// allocation that does not fit a changed request is replaced. An allocation still fits after its subnet got a second family.
func (a *Allocator) Allocate(port string, r Request) (Allocation, error) {
	return a.change(port, want{Request: r})
}

// Restore restores the allocation that a port had before the start. It accepts any address that no other port holds, including
// excluded addresses and addresses outside the CIDRs. Two restored ports may have the same MAC address.
func (a *Allocator) Restore(port string, l Allocation) error {
	_, err := a.change(port, want{Request: Request{Subnet: l.Subnet, Addresses: l.Addresses, MAC: l.MAC}, asIs: true})
	return err
}

// RestoreShared is Restore for the owner of shared allocations: ports that already hold its addresses become their users. Call it after
// the ports are restored.
func (a *Allocator) RestoreShared(holder string, l Allocation) error {
	_, err := a.change(holder, want{Request: Request{Subnet: l.Subnet, Addresses: l.Addresses, MAC: l.MAC}, asIs: true, shares: true})
	return err
}

// Release frees the port's allocation, if it has one. Addresses of a shared allocation return to the owner if the port is their user, and stay
// with the user if the port is their owner.
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

// Lookup returns the port's allocation.
func (a *Allocator) Lookup(port string) (Allocation, bool) {
	sh := a.shard(port)
	sh.Lock()
	defer sh.Unlock()
	h, ok := sh.ports[port]
	if !ok {
		return Allocation{}, false
	}
	h.subnet.Lock()
	defer h.subnet.Unlock()
	if h.subnet.closed {
		return Allocation{}, false
	}
	return h.subnet.allocation(h), true
}

// Fits reports whether the port's allocation satisfies the request, so that Allocate would change nothing.
func (a *Allocator) Fits(port string, r Request) bool {
	sh := a.shard(port)
	sh.Lock()
	defer sh.Unlock()
	h, ok := sh.ports[port]
	if !ok || h.subnet.name != r.Subnet {
		return false
	}
	h.subnet.Lock()
	defer h.subnet.Unlock()
	return !h.subnet.closed && h.subnet.fits(port, h, h.subnet.allocation(h), want{Request: r})
}

// want is a request, or with asIs an allocation to restore without checks against the subnet.
type want struct {
	Request
	asIs   bool
	shares bool
}

// change makes the port hold the wanted allocation. It releases the port's holding in another subnet only after that succeeded.
func (a *Allocator) change(port string, w want) (Allocation, error) {
	sub := a.subnet(w.Subnet)
	if sub == nil {
		return Allocation{}, fmt.Errorf("subnet %s: %w", w.Subnet, ErrNoSubnet)
	}
	sh := a.shard(port)
	sh.Lock()
	old := sh.ports[port]
	h, allocation, err := sub.change(port, old, w)
	if h != old && h.subnet != nil {
		sh.ports[port] = h
	}
	moved := err == nil && old.subnet != nil && old.subnet != sub
	if moved {
		old.subnet.release(port, old)
	}
	sh.Unlock()
	if err != nil {
		return Allocation{}, fmt.Errorf("subnet %s: port %s: %w", w.Subnet, port, err)
	}
	if moved {
		a.changed(old.subnet.name)
	}
	if h != old {
		a.changed(w.Subnet)
	}
	return allocation, nil
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
