// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package k8s holds what reconcilers share: sources of work beside watches, small patches, conditions and events.
package k8s

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Gate holds reconcilers back until the state they decide from is complete: the leader's term is taken and the allocator knows
// every address in use. It opens once.
type Gate struct {
	once sync.Once
	open chan struct{}

	mu       sync.Mutex
	backlogs []*backlog // of the controllers of Workers
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{open: make(chan struct{})} }

// Open lets everyone through, for good. It may be called again.
func (g *Gate) Open() { g.once.Do(func() { close(g.open) }) }

// Wait blocks until the gate is open or ctx ends; its error is that of ctx.
func (g *Gate) Wait(ctx context.Context) error {
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// standbyAfter is how long a process waits for its gate before it reads what only matters behind it: whoever can lead does so by then,
// and a standby has time.
const standbyAfter = 2 * time.Second

// Behind is a source that is read once the gate is open, so that it does not hold back what the gate waits for. A standby reads it
// before, to have it when it leads. Nothing waits for it to be complete.
func (g *Gate) Behind(s source.Source) source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
		go func() {
			patience, stop := context.WithTimeout(ctx, standbyAfter)
			_ = g.Wait(patience) // open, or nobody to wait for
			stop()
			if ctx.Err() != nil {
				return
			}
			if err := s.Start(ctx, q); err != nil && ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "cannot start a source")
			}
		}()
		return nil
	})
}

// staleAfter is how long a reconciler waits for its cache to catch up, after the server has refused a change of what was not the
// newest.
const staleAfter = 50 * time.Millisecond

// Reconciler is r behind the gate. Its workers wait, so that a standby with warm queues neither works nor logs failures. A change that
// the server refused because the cache was behind is tried again in silence, and what ends with the process is no failure.
func (g *Gate) Reconciler(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		if g.Wait(ctx) != nil {
			return reconcile.Result{}, nil
		}
		result, err := r.Reconcile(ctx, req)
		switch {
		case ctx.Err() != nil:
			return reconcile.Result{}, nil
		case apierrors.IsConflict(err):
			return reconcile.Result{RequeueAfter: staleAfter}, nil
		}
		return result, err
	})
}
