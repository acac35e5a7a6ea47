// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"sync"
	"time"

	"github.com/kiln-net/kiln/internal/k8s"
)

// Paced is a source that limits the requests for an object, however often it changes. The first change is requested after Delay. Changes within
// Every of a request share the next one, which comes when Every has passed.
type Paced struct {
	Delay, Every time.Duration

	k8s.RequestSource
	mu      sync.Mutex
	objects map[string]*paced
}

// paced has a timer at the earliest time of the next request. changed is true if an object has changed since the last one.
type paced struct {
	timer   *time.Timer
	changed bool
}

// Changed records a change of a cluster-scoped object. It never blocks.
func (p *Paced) Changed(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.objects[name]; o != nil {
		o.changed = true
		return
	}
	if p.objects == nil {
		p.objects = map[string]*paced{}
	}
	p.objects[name] = &paced{changed: true, timer: time.AfterFunc(p.Delay, func() { p.due(name) })}
}

// due requests an object that has changed, and forgets one that has not changed for Every.
func (p *Paced) due(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.objects[name]
	if !o.changed {
		delete(p.objects, name)
		return
	}
	o.changed = false
	o.timer.Reset(p.Every)
	p.Add(name)
}
