// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// claimRetry is the time after which a refused claim is checked again, and the shortest time between two events of a node.
const claimRetry = time.Minute

// claims holds which node has an address, and which nodes claim it. The first claim wins.
type claims struct {
	// restoring serializes restore.
	restoring sync.Mutex
	restored  bool

	mu     sync.Mutex
	holder map[netip.Addr]string
	held   map[string][]netip.Addr
	// claimed are the addresses that each node claims, whether it has them or not; claimants are the nodes that claim an address, and index is its
	// sorted keys.
	claimed   map[string][]netip.Addr
	claimants map[netip.Addr][]claimant
	index     []netip.Addr
	// reported is the last event of each node about its addresses.
	reported map[string]report
}

// claimant is a node that claims an address.
type claimant struct {
	node string
	// waits is true if the node may have the address, and only another node's claim prevents it.
	waits bool
}

type report struct {
	text string
	at   time.Time
}

// claim records the addresses that a node claims, instead of earlier ones. Call it before the checks: a change that they do not see yet finds the
// node with inside.
func (c *claims) claim(node string, addresses []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.claimed[node] {
		left := slices.DeleteFunc(c.claimants[a], func(by claimant) bool { return by.node == node })
		if c.claimants[a] = left; len(left) == 0 && !slices.Contains(addresses, a) {
			delete(c.claimants, a)
			if i, found := slices.BinarySearchFunc(c.index, a, netip.Addr.Compare); found {
				c.index = slices.Delete(c.index, i, i+1)
			}
		}
	}
	if c.claimed == nil {
		c.claimed, c.claimants = map[string][]netip.Addr{}, map[netip.Addr][]claimant{}
	}
	if c.claimed[node] = addresses; len(addresses) == 0 {
		delete(c.claimed, node)
	}
	for _, a := range addresses {
		c.claimants[a] = append(c.claimants[a], claimant{node: node})
		if i, found := slices.BinarySearchFunc(c.index, a, netip.Addr.Compare); !found {
			c.index = slices.Insert(c.index, i, a)
		}
	}
}

// inside returns the nodes that claim an address in one of the prefixes.
func (c *claims) inside(prefixes []netip.Prefix) (nodes []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range prefixes {
		first, _ := slices.BinarySearchFunc(c.index, p.Masked().Addr(), netip.Addr.Compare)
		for _, a := range c.index[first:] {
			if !p.Contains(a) {
				break
			}
			for _, by := range c.claimants[a] {
				nodes = append(nodes, by.node)
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// holderOf returns the node that has an address; "" if none has it.
func (c *claims) holderOf(address netip.Addr) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holder[address]
}

// take gives an address to a node that may have it. If another node has it, take returns that node, and the node waits for the address.
func (c *claims) take(address netip.Addr, node string) (holder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch holder = c.holder[address]; holder {
	case node:
		return ""
	case "":
		if c.holder == nil {
			c.holder, c.held = map[netip.Addr]string{}, map[string][]netip.Addr{}
		}
		c.holder[address] = node
		c.held[node] = append(c.held[node], address)
		return ""
	}
	for i := range c.claimants[address] {
		if by := &c.claimants[address][i]; by.node == node {
			by.waits = true
		}
	}
	return holder
}

// waiting returns the nodes that wait for an address.
func (c *claims) waiting(address netip.Addr) (nodes []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, by := range c.claimants[address] {
		if by.waits {
			nodes = append(nodes, by.node)
		}
	}
	return nodes
}

// keep releases all addresses of a node except these. Call it when the node's rows and its record have no others. It returns the other nodes that
// claim a released address.
func (c *claims) keep(node string, addresses []netip.Addr) (others []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := slices.DeleteFunc(c.held[node], func(a netip.Addr) bool {
		released := !slices.Contains(addresses, a)
		if released {
			delete(c.holder, a)
			for _, by := range c.claimants[a] {
				if by.node != node {
					others = append(others, by.node)
				}
			}
		}
		return released
	})
	if len(kept) == 0 {
		delete(c.held, node)
		return others
	}
	c.held[node] = kept
	return others
}

// report reports whether an event with a text is due: the node's last event has another text, and is claimRetry old.
func (c *claims) report(node, text string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, reported := c.reported[node]
	switch {
	case text == "":
		if now.Sub(last.at) >= claimRetry {
			delete(c.reported, node)
		}
		return false
	case reported && (last.text == text || now.Sub(last.at) < claimRetry):
		return false
	}
	if c.reported == nil {
		c.reported = map[string]report{}
	}
	c.reported[node] = report{text, now}
	return true
}

// forget ends the claims of a deleted node. It returns the other nodes that claim one of its addresses.
func (c *claims) forget(node string) (others []string) {
	c.claim(node, nil)
	others = c.keep(node, nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reported, node)
	return others
}

// apiServers remembers the addresses of API servers. An API server removes its address from the endpoints while it restarts: a node must not claim it
// meanwhile.
type apiServers struct {
	mu   sync.Mutex
	seen map[netip.Addr]time.Time
}

// absence is how long an address counts as one of an API server after it is removed from the endpoints.
const absence = time.Hour

// saw records addresses that are endpoints, or have just been.
func (s *apiServers) saw(addresses []netip.Addr, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[netip.Addr]time.Time{}
	}
	for a, at := range s.seen {
		if now.Sub(at) >= absence {
			delete(s.seen, a)
		}
	}
	for _, a := range addresses {
		s.seen[a] = now
	}
}

// lately reports whether an address was an endpoint within the last hour.
func (s *apiServers) lately(address netip.Addr, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, seen := s.seen[address]
	return seen && now.Sub(at) < absence
}
