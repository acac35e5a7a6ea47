// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"slices"
	"sync"
	"time"
)

// The Leases of gateway nodes (coordination.k8s.io/v1), in the namespace of the components. A node's agent renews its Lease while its data
// path serves.
const (
	// LeasePrefix goes before the node's name in the name of its Lease, and LeaseLabel, without a value, is on all of them.
	LeasePrefix = "gateway-"
	LeaseLabel  = "ovn.kubernetes.io/gateway-lease"
	// RenewEvery is the time between two renewals.
	RenewEvery = 2 * time.Second
	// Tolerance is how long a Lease may go without renewal; the Lease says so itself (leaseDurationSeconds), so that an agent which is
	// about to be replaced can ask for RestartTolerance. After that the kubelet's word has come.
	Tolerance        = 8 * time.Second
	RestartTolerance = 20 * time.Second
	// silence of every Lease at once is the API server's, or this watch's, and says nothing of nodes. It is less than Tolerance by more
	// than RenewEvery: whatever stopped all renewals shows before the first Lease runs out.
	silence = 4 * time.Second
	// steady is how long a node that was away has to be back before it counts like the others.
	steady = 10 * time.Second
	// remembered is how long it counts that a node which was asked for a Lease never wrote one.
	remembered = time.Minute
)

// Pulse is what is known of a node's data path.
type Pulse int

// Pulses.
const (
	// NoLease: the node's agent does not say; the kubelet's word has to do.
	NoLease Pulse = iota
	// Beating: the Lease is renewed.
	Beating
	// Unheard: there is a Lease, and it was not seen renewed yet, or only lately again.
	Unheard
	// Stopped: the Lease ran out.
	Stopped
)

// Pulses follows the Leases by this process's own clock, from one change to the next, as leader election does: clocks of machines are
// never compared. It may be used from any goroutine.
type Pulses struct {
	// Now is the clock; time.Now when nil.
	Now func() time.Time

	mu    sync.Mutex
	nodes map[string]*beat
	heard time.Time // the last renewal of any Lease
}

type beat struct {
	renewed   time.Time // as the Lease says: compared with itself only
	seen      time.Time // when that was seen first, or since when silence counts
	tolerance time.Duration
	expected  bool // there is no Lease yet
	proven    bool
	stopped   bool
	back      time.Time // when it was first renewed after it had stopped
}

func (p *Pulses) now() time.Time {
	if p.Now != nil {
		return p.Now()
	}
	return time.Now()
}

// Renewed takes note of a Lease as it is. It reports whether the node's pulse changed.
func (p *Pulses) Renewed(node string, at time.Time, tolerance time.Duration) bool {
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
			p.nodes = map[string]*beat{}
		}
		p.nodes[node] = &beat{renewed: at, seen: now, tolerance: tolerance}
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

// Expect takes note that a node was told to renew a Lease. One that does not begin to is taken for one that stopped.
func (p *Pulses) Expect(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.nodes[node]; known {
		return
	}
	if p.nodes == nil {
		p.nodes = map[string]*beat{}
	}
	p.nodes[node] = &beat{expected: true, seen: p.now(), tolerance: RestartTolerance}
}

// startAnew counts from now for everyone, after a time in which nobody could be heard.
func (p *Pulses) startAnew(now time.Time) {
	for _, b := range p.nodes {
		b.seen = now
	}
}

// Gone takes note that a node has no Lease. It reports whether it had one.
func (p *Pulses) Gone(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, known := p.nodes[node]
	delete(p.nodes, node)
	return known
}

// Expire returns the nodes whose pulse stops now, and how long it takes at least until the next may.
func (p *Pulses) Expire() (stopped []string, next time.Duration) {
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

// Of is a node's pulse.
func (p *Pulses) Of(node string) Pulse {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b, known := p.nodes[node]; known && (!b.expected || b.stopped) {
		return b.pulse()
	}
	return NoLease
}

func (b *beat) pulse() Pulse {
	switch {
	case b.stopped:
		return Stopped
	case b.proven:
		return Beating
	}
	return Unheard
}
