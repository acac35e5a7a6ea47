// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kiln-net/kiln/internal/k8s"
)

const (
	// startRounds is how many rounds WaitWritten takes at most. Each link of the longest chain of dependencies takes one: VPC, subnet, pod, set of
	// pods, policy. One more is spare.
	startRounds = 6
	// idleRounds is how many empty rounds in succession end WaitWritten early.
	idleRounds = 2
	// startAttempts is how often a key of a round is tried. With the pauses of k8s.Retries that takes five seconds. Its error is logged, and one bad
	// key must not hold up the others.
	startAttempts = 10
)

// Workers returns the options of a controller with n workers, whose keys WaitWritten counts. The controller retries as k8s.Retries says.
func (g *StartGate) Workers(n int) controller.Options {
	b := newBacklog()
	g.mu.Lock()
	g.backlogs = append(g.backlogs, b)
	g.mu.Unlock()
	options := k8s.Workers(n)
	options.NewQueue = func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) k8s.Queue {
		b.PriorityQueue = priorityqueue.New(name, func(o *priorityqueue.Opts[reconcile.Request]) {
			o.Log, o.RateLimiter = log.Log.WithValues("controller", name), limiter
		})
		return b
	}
	return options
}

// WaitWritten blocks until the controllers of Workers have reconciled each key that was queued at their start, and all keys that
// these reconciliations enqueued. It works in rounds, with a pause before each. A round ends once each key that was pending at
// its start has been reconciled without error, or has failed startAttempts times. Keys that are added later belong to a later
// round, so that constant changes do not prolong a round; the number of rounds is limited. It returns the number of keys that still fail
// after startAttempts, and the error of ctx. Call it once.
func (g *StartGate) WaitWritten(ctx context.Context, pause time.Duration) (failing int, err error) {
	g.mu.Lock()
	backlogs := g.backlogs
	g.mu.Unlock()
	defer func() {
		for _, b := range backlogs {
			b.stop()
		}
	}()
	for round, idle := 0, 0; round < startRounds && idle < idleRounds; round++ {
		if err := wait(ctx, time.After(pause)); err != nil {
			return 0, err
		}
		pending, err := finishRound(ctx, backlogs)
		if err != nil {
			return 0, err
		}
		if idle++; pending > 0 {
			idle = 0
		}
	}
	for _, b := range backlogs {
		failing += b.failing()
	}
	return failing, nil
}

// finishRound begins a round in each backlog and waits until all have ended. It returns how many keys the round had.
func finishRound(ctx context.Context, backlogs []*backlog) (int, error) {
	for _, b := range backlogs {
		if err := wait(ctx, b.started); err != nil {
			return 0, err
		}
	}
	pending, ends := 0, make([]<-chan struct{}, 0, len(backlogs))
	for _, b := range backlogs {
		n, end := b.begin()
		pending, ends = pending+n, append(ends, end)
	}
	for _, end := range ends {
		if err := wait(ctx, end); err != nil {
			return pending, err
		}
	}
	return pending, nil
}

func wait[T any](ctx context.Context, c <-chan T) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// backlog is the queue of a controller that records which keys are pending, until stop.
type backlog struct {
	priorityqueue.PriorityQueue[reconcile.Request]

	// started is closed when the first worker requests a key. By then the queue has all keys of the initial lists: a controller
	// starts its workers once its sources have synced.
	started chan struct{}

	once    sync.Once // for started
	mu      sync.Mutex
	stopped bool
	// queued are the keys that were added for immediate reconciliation.
	queued map[reconcile.Request]struct{}
	// running are the keys that workers process; true if the worker has added the key again because of an error.
	running map[reconcile.Request]bool
	// failures counts the consecutive failures of a key.
	failures map[reconcile.Request]int
	// round are the keys that the current round waits for; true once a worker has started the reconciliation that counts for the
	// round.
	round map[reconcile.Request]bool
	// end is closed when round is empty.
	end chan struct{}
}

func newBacklog() *backlog {
	return &backlog{
		started:  make(chan struct{}),
		queued:   map[reconcile.Request]struct{}{},
		running:  map[reconcile.Request]bool{},
		failures: map[reconcile.Request]int{},
	}
}

// begin starts a round with the keys that are pending now. It returns their number, and a channel that is closed at the end of the round.
func (b *backlog) begin() (int, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round, b.end = map[reconcile.Request]bool{}, make(chan struct{})
	for req, failures := range b.failures {
		if failures < startAttempts {
			b.round[req] = false
		}
	}
	for req := range b.running {
		b.round[req] = true
	}
	for req := range b.queued {
		b.round[req] = false
	}
	if len(b.round) == 0 {
		close(b.end)
	}
	return len(b.round), b.end
}

// failing returns the number of keys for which no round waits anymore, because they keep failing.
func (b *backlog) failing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, failures := range b.failures {
		if failures >= startAttempts {
			n++
		}
	}
	return n
}

// stop ends the recording and frees its memory.
func (b *backlog) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped, b.queued, b.running, b.failures, b.round = true, nil, nil, nil, nil
}

// AddWithOpts implements priorityqueue.PriorityQueue.
func (b *backlog) AddWithOpts(o priorityqueue.AddOpts, requests ...reconcile.Request) {
	b.added(o, requests)
	b.PriorityQueue.AddWithOpts(o, requests...)
}

func (b *backlog) added(o priorityqueue.AddOpts, requests []reconcile.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return
	}
	isRetry := o.RateLimited || o.After == staleAfter // Gate.Reconciler retries a conflict after staleAfter
	for _, req := range requests {
		if _, runs := b.running[req]; runs && isRetry {
			b.running[req] = true
		} else if o.After == 0 && !isRetry {
			b.queued[req] = struct{}{}
		}
	}
}

// Add implements workqueue.TypedInterface.
func (b *backlog) Add(req reconcile.Request) { b.AddWithOpts(priorityqueue.AddOpts{}, req) }

// AddAfter implements workqueue.TypedDelayingInterface.
func (b *backlog) AddAfter(req reconcile.Request, after time.Duration) {
	b.AddWithOpts(priorityqueue.AddOpts{After: after}, req)
}

// AddRateLimited implements workqueue.TypedRateLimitingInterface.
func (b *backlog) AddRateLimited(req reconcile.Request) {
	b.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, req)
}

// Get implements workqueue.TypedInterface.
func (b *backlog) Get() (reconcile.Request, bool) {
	req, _, shutdown := b.GetWithPriority()
	return req, shutdown
}

// GetWithPriority implements priorityqueue.PriorityQueue.
func (b *backlog) GetWithPriority() (reconcile.Request, int, bool) {
	b.once.Do(func() { close(b.started) })
	req, priority, shutdown := b.PriorityQueue.GetWithPriority()
	if shutdown {
		return req, priority, shutdown
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return req, priority, shutdown
	}
	delete(b.queued, req)
	b.running[req] = false
	if _, pending := b.round[req]; pending {
		b.round[req] = true
	}
	return req, priority, shutdown
}

// Done implements workqueue.TypedInterface. A controller calls it after it has added the key again because of an error.
func (b *backlog) Done(req reconcile.Request) {
	b.done(req)
	b.PriorityQueue.Done(req)
}

func (b *backlog) done(req reconcile.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	failed, runs := b.running[req]
	if !runs {
		return // the key started before stop
	}
	delete(b.running, req)
	if failed {
		b.failures[req]++
	} else {
		delete(b.failures, req)
	}
	if failed && b.failures[req] < startAttempts || !b.round[req] {
		return
	}
	if delete(b.round, req); len(b.round) == 0 {
		close(b.end)
	}
}
