// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reconciler contains the parts of the controller that all its reconcilers share: their common parts (Shared), the gate that they wait at, the
// record of keys that are pending after a start, sources of requests other than watches, and metrics with a series per object (Series).
package reconciler

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/internal/k8s"
)

// StartGate blocks reconcilers until the state they depend on is complete: this process is the leader, and the allocator knows every
// address in use. It opens once.
type StartGate struct {
	once sync.Once
	open chan struct{}

	mu       sync.Mutex
	backlogs []*backlog // the backlogs of the controllers of Workers
}

// NewStartGate returns a closed gate.
func NewStartGate() *StartGate { return &StartGate{open: make(chan struct{})} }

// Open opens the gate permanently. It is idempotent.
func (g *StartGate) Open() { g.once.Do(func() { close(g.open) }) }

// Wait blocks until the gate is open or ctx ends; its error is the error of ctx.
func (g *StartGate) Wait(ctx context.Context) error {
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// standbyAfter is how long a process waits for its gate before it starts a source behind it. A process that can become the
// leader at once has done so by then, and a standby has time.
const standbyAfter = 2 * time.Second

// After returns a source that starts once the gate is open, so that it does not delay the steps before that. On a standby
// it starts after standbyAfter, so that it has synced before the standby becomes the leader. Nothing waits for its sync.
func (g *StartGate) After(s source.Source) source.Source {
	return source.Func(func(ctx context.Context, q k8s.Queue) error {
		go func() {
			patience, stop := context.WithTimeout(ctx, standbyAfter)
			_ = g.Wait(patience) // after the timeout this process is a standby
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

// staleAfter is the delay before a conflict is retried: the API server refused a change that was based on a stale cache.
const staleAfter = 50 * time.Millisecond

// Reconciler returns r behind the gate. Its workers wait, so that a standby with warm queues neither works nor logs failures.
// Conflicts due to a stale cache are retried without an error, and errors at the end of the process are dropped.
func (g *StartGate) Reconciler(r reconcile.Reconciler) reconcile.Reconciler {
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
