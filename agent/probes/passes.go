// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"context"
	"sync"
)

// passes runs one pass at a time. Calls that arrive during a pass wait for the next one and share it, since the running pass may have
// read its inputs before the calls.
type passes struct {
	mu      sync.Mutex
	running bool
	next    *pass // the pass that has not started; nil if no call waits for one
}

type pass struct {
	done chan struct{} // closed at the end
	err  error
}

// join requests a pass that begins after the call, or waits for one that another call has requested. The pass continues when ctx ends.
func (p *passes) join(ctx context.Context, run func(context.Context) error) error {
	p.mu.Lock()
	if p.next == nil {
		p.next = &pass{done: make(chan struct{})}
	}
	joined := p.next
	if !p.running {
		p.running = true
		go p.run(context.WithoutCancel(ctx), run)
	}
	p.mu.Unlock()
	select {
	case <-joined.done:
		return joined.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run runs passes until no call waits for one.
func (p *passes) run(ctx context.Context, run func(context.Context) error) {
	for {
		p.mu.Lock()
		begun := p.next
		p.next, p.running = nil, begun != nil
		p.mu.Unlock()
		if begun == nil {
			return
		}
		limited, cancel := context.WithTimeout(ctx, resync) // unsynced caches block a pass, and ADDs wait for it
		begun.err = run(limited)
		cancel()
		close(begun.done)
	}
}
