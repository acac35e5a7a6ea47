// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"sync"
	"time"

	"github.com/kiln-net/kiln/internal/k8s"
)

// Paced limits the requests for an object, however often it changes. The first change is requested after Delay. Changes within Every of a request
// share the next one, which comes when Every has passed, or earlier, when there was no change for Quiet, if that is not zero.
type Paced struct {
	Delay, Every, Quiet time.Duration
	// Do is called with the name of a due object, without a lock. If it is nil, Paced is a source that enqueues the cluster-scoped object.
	Do func(name string)

	k8s.RequestSource
	mu      sync.Mutex
	objects map[string]*paced
}

// paced has a timer for the next request, which is due at that time, and at the latest at another one.
type paced struct {
	timer      *time.Timer
	at, latest time.Time
	changed    bool // since the last request
}

func (o *paced) wakeAt(at time.Time) {
	o.at = at
	o.timer.Reset(time.Until(at))
}

// Changed records a change of an object. It never blocks.
func (p *Paced) Changed(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.objects[name]
	switch {
	case o == nil:
		if p.objects == nil {
			p.objects = map[string]*paced{}
		}
		latest := time.Now().Add(p.Delay)
		o = &paced{timer: time.AfterFunc(p.Delay, func() { p.wake(name) }), at: latest, latest: latest}
		p.objects[name] = o
	case p.Quiet > 0:
		at := time.Now().Add(p.Quiet)
		if o.latest.Before(at) {
			at = o.latest
		}
		o.wakeAt(at)
	}
	o.changed = true
}

// wake requests an object that is due.
func (p *Paced) wake(name string) {
	switch {
	case !p.take(name):
	case p.Do != nil:
		p.Do(name)
	default:
		p.Add(name)
	}
}

// take reports whether an object is due. It forgets an object that has not changed for Every.
func (p *Paced) take(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o, now := p.objects[name], time.Now()
	if o == nil || now.Before(o.at) { // the timer was set again after it fired
		return false
	}
	if !o.changed {
		delete(p.objects, name)
		return false
	}
	o.changed, o.latest = false, now.Add(p.Every)
	o.wakeAt(o.latest)
	return true
}
