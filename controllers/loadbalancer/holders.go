// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// holders records which Service has each address, also those that the cache does not show yet.
type holders struct {
	mu   sync.Mutex
	by   map[netip.Addr]types.NamespacedName
	has  map[types.NamespacedName][]netip.Addr
	wait map[types.NamespacedName]bool
	// cursors are where the search in a pool continues, and full are the pools in which it found no address since the last change.
	cursors map[place]netip.Addr
	full    map[place]bool
	// epoch counts the changes that can free addresses.
	epoch int
}

func newHolders() *holders {
	return &holders{
		by: map[netip.Addr]types.NamespacedName{}, has: map[types.NamespacedName][]netip.Addr{}, wait: map[types.NamespacedName]bool{},
		cursors: map[place]netip.Addr{}, full: map[place]bool{},
	}
}

// place is a family of a pool.
type place struct {
	class string
	ipfamily.Family
}

// set replaces the addresses of a Service. It returns the Services that wait for an address if there are free ones now.
func (h *holders) set(service types.NamespacedName, addresses []netip.Addr) (waiting []types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	freed := false
	for _, a := range h.has[service] {
		if !slices.Contains(addresses, a) {
			delete(h.by, a)
			freed = true
		}
	}
	delete(h.has, service)
	for _, a := range addresses {
		h.by[a] = service
	}
	if len(addresses) > 0 {
		h.has[service] = addresses
	}
	if freed {
		return h.retry(service)
	}
	return nil
}

// retry returns the Services that wait for an address, without one of them. The next search covers all addresses.
func (h *holders) retry(except types.NamespacedName) []types.NamespacedName {
	clear(h.full)
	h.epoch++
	waiting := make([]types.NamespacedName, 0, len(h.wait))
	for service := range h.wait {
		if service != except {
			waiting = append(waiting, service)
		}
	}
	return waiting
}

// freed is retry after a change of other objects.
func (h *holders) freed() []types.NamespacedName {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.retry(types.NamespacedName{})
}

// waits records whether a Service waits for an address.
func (h *holders) waits(service types.NamespacedName, waits bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !waits {
		delete(h.wait, service)
	} else {
		h.wait[service] = true
	}
}

// of returns the Service that has an address; the zero name if none has it.
func (h *holders) of(a netip.Addr) types.NamespacedName {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.by[a]
}

// addresses returns the addresses of a Service.
func (h *holders) addresses(service types.NamespacedName) []netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.has[service]
}

// search returns an address of a pool that no Service has and usable accepts; the zero Addr if there is none. usable returns the last address of the
// block that it refuses. The search continues after the last address that it found, so that an address is not assigned again at once.
func (h *holders) search(p *pool, f ipfamily.Family, usable func(netip.Addr) (refused netip.Addr, err error)) (netip.Addr, error) {
	at := place{p.spec.Class, f}
	h.mu.Lock()
	start, full, epoch := h.cursors[at], h.full[at], h.epoch
	h.mu.Unlock()
	if full {
		return netip.Addr{}, nil
	}
	for a, wrapped := p.from(f, start), !start.IsValid(); ; {
		if !a.IsValid() || wrapped && start.IsValid() && !a.Less(start) {
			if wrapped {
				h.found(at, netip.Addr{}, epoch)
				return netip.Addr{}, nil
			}
			a, wrapped = p.from(f, netip.Addr{}), true
			continue
		}
		last := a
		if h.of(a).Name == "" {
			refused, err := usable(a)
			if err != nil {
				return netip.Addr{}, err
			}
			if !refused.IsValid() {
				h.found(at, a, epoch)
				return a, nil
			}
			last = refused
		}
		a = p.after(last)
	}
}

// found records the result of a search. If addresses were freed since its epoch, a pool is not full.
func (h *holders) found(at place, a netip.Addr, epoch int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.IsValid() {
		h.cursors[at] = a.Next()
	} else {
		h.full[at] = h.epoch == epoch
	}
}

// counts returns how many addresses of each pool and family Services have, and how many Services wait.
func (h *holders) counts(pools []*pool) (assigned map[place]int, waiting int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	assigned = map[place]int{}
	for a := range h.by {
		for _, p := range pools {
			if p.contains(a) {
				assigned[place{p.spec.Class, ipfamily.Of(a)}]++
			}
		}
	}
	return assigned, len(h.wait)
}
