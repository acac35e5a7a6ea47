// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"slices"
	"sync"
	"time"
)

// The Leases of gateway nodes (coordination.k8s.io/v1), in the namespace of the components. A node's agent renews its Lease
// while the node's data path works.
const (
	// LeasePrefix precedes the node's name in the name of its Lease. LeaseLabel, without a value, is on all of these Leases.
	LeasePrefix = "gateway-"
	LeaseLabel  = "ovn.kubernetes.io/gateway-lease"
	// RenewEvery is the interval of renewals.
	RenewEvery = 2 * time.Second
	// Tolerance is how long a Lease may go without renewal. The Lease itself contains the value (leaseDurationSeconds), so that an
	// agent can request RestartTolerance before it is replaced. After that time the kubelet's condition is available.
	Tolerance        = 8 * time.Second
	RestartTolerance = 20 * time.Second
	// silence is the time without any renewal after which the API server or this watch is taken as the cause, not the nodes. It is
	// less than Tolerance by more than RenewEvery, so that a common cause is detected before the first Lease expires.
	silence = 4 * time.Second
	// steady is how long a node that stopped must renew again before it counts as proven.
	steady = 10 * time.Second
	// remembered is how long a missing first Lease of an expected node counts as a stop.
	remembered = time.Minute
)

// LeaseState is the known state of a node's data path.
type LeaseState int

// Lease states.
const (
	// NoLease: the node's agent does not report; only the kubelet's condition counts.
	NoLease LeaseState = iota
	// Alive: the Lease is renewed.
	Alive
	// Unknown: the Lease exists, but no renewal was observed yet, or renewals resumed only recently.
	Unknown
	// Stopped: the Lease has expired.
	Stopped
)

// Leases reports which nodes have a working data path.
type Leases interface {
	// Of returns the Lease state of a node.
	Of(node string) LeaseState
	// Expect records that a node has to renew its Lease from now on.
	Expect(node string)
	// Subscribe registers f, which is called for each node whose Lease state changes.
	Subscribe(f func(node string))
}

// LeaseStates tracks the Leases by this process's own clock, from one change to the next, like leader election: clocks of different
// machines are never compared. It is safe for concurrent use.
type LeaseStates struct {
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	mu    sync.Mutex
	nodes map[string]*nodeLease
	heard time.Time // the last renewal of any Lease
}

type nodeLease struct {
	renewed   time.Time // the time in the Lease: compared only with its own earlier values
	seen      time.Time // when renewed was first observed, or since when silence counts
	tolerance time.Duration
	expected  bool // there is no Lease yet
	proven    bool
	stopped   bool
	back      time.Time // the first renewal after a stop
}

func (p *LeaseStates) now() time.Time {
	if p.Now != nil {
		return p.Now()
	}
	return time.Now()
}

// Renewed records the current state of a Lease. It reports whether the node's pulse changed.
func (p *LeaseStates) Renewed(node string, at time.Time, tolerance time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, known := p.nodes[node]
	if known && b.renewed.Equal(at) && b.tolerance == tolerance {
		return false
	}
	now := p.now()
	if now.Sub(p.heard) > silence {
		p.startAnew(now)
	}
	p.heard = now
	if !known {
		if p.nodes == nil {
			p.nodes = map[string]*nodeLease{}
		}
		p.nodes[node] = &nodeLease{renewed: at, seen: now, tolerance: tolerance}
		return true
	}
	before := b.pulse()
	b.renewed, b.seen, b.tolerance, b.expected = at, now, tolerance, false
	switch {
	case b.stopped:
		b.stopped, b.proven, b.back = false, false, now
	case !b.proven:
		b.proven = now.Sub(b.back) >= steady
	}
	return b.pulse() != before
}

// Expect records that a node was requested to renew a Lease. If it does not start to, the node counts as stopped.
func (p *LeaseStates) Expect(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.nodes[node]; known {
		return
	}
	if p.nodes == nil {
		p.nodes = map[string]*nodeLease{}
	}
	p.nodes[node] = &nodeLease{expected: true, seen: p.now(), tolerance: RestartTolerance}
}

// startAnew restarts all timeouts at now, after a time without any renewal.
func (p *LeaseStates) startAnew(now time.Time) {
	for _, b := range p.nodes {
		b.seen = now
	}
}

// Gone records that a node has no Lease. It reports whether the node had one.
func (p *LeaseStates) Gone(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, known := p.nodes[node]
	delete(p.nodes, node)
	return known
}

// Expire returns the nodes whose pulse stops now, and the minimum time until the next one can stop.
func (p *LeaseStates) Expire() (stopped []string, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	quiet := now.Sub(p.heard) > silence
	next = Tolerance
	for node, b := range p.nodes {
		left := b.tolerance - now.Sub(b.seen)
		switch {
		case b.stopped && b.expected && left < -remembered:
			delete(p.nodes, node)
		case b.stopped:
		case left > 0:
			next = min(next, left)
		case quiet:
			next = min(next, RenewEvery)
		default:
			b.stopped, b.proven = true, false
			stopped = append(stopped, node)
		}
	}
	slices.Sort(stopped)
	return stopped, next
}

// Of returns a node's pulse.
func (p *LeaseStates) Of(node string) LeaseState {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b, known := p.nodes[node]; known && (!b.expected || b.stopped) {
		return b.pulse()
	}
	return NoLease
}

func (b *nodeLease) pulse() LeaseState {
	switch {
	case b.stopped:
		return Stopped
	case b.proven:
		return Alive
	}
	return Unknown
}
