// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kiln-net/kiln/internal/batch"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

// maxOperations bounds the operations of a transaction; a single owner may exceed it.
const maxOperations = 4000

// errDiverged reports that the rows differ from the values that were just committed: another client writes them too.
var errDiverged = errors.New("rows changed while they were written")

// commitLoop commits queued requests until ctx ends. One transaction is in flight at a time. Requests that arrive meanwhile, or
// in the gatherer's window, share the next transaction. Apply blocks its caller until then, which is the back-pressure.
func (e *Engine) commitLoop(ctx context.Context) {
	var g gatherer
	canary := time.NewTicker(e.canaryInterval / 2)
	defer canary.Stop()
	for {
		select {
		case <-e.queue.wake:
		case <-e.paced.timer.C:
		case <-canary.C:
			e.canary(ctx)
			continue
		case <-ctx.Done():
			return
		}
		for e.release(ctx); e.gather(ctx, &g); e.release(ctx) {
			e.release(ctx) // the time can have come while others gathered
			requests := e.queue.take()
			began := time.Now()
			e.commit(ctx, requests)
			g.committed(began, time.Now(), len(requests), slices.ContainsFunc(requests, func(r *request) bool { return r.crowd }))
		}
	}
}

// gather waits until the next transaction is due. It returns false when the queue is empty or ctx has ended.
func (e *Engine) gather(ctx context.Context, g *gatherer) bool {
	var waited time.Duration
	for {
		queued := e.queue.waiting()
		if queued.requests == 0 {
			return false
		}
		wait := g.wait(time.Now(), queued)
		if wait == 0 {
			gathering.Observe(waited.Seconds())
			return true
		}
		start := time.Now()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-e.queue.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return false
		}
		waited += time.Since(start)
	}
}

// commit writes a batch in one transaction. If the server refuses or drops the transaction because of one owner, commit splits
// the batch until only that owner's request fails.
func (e *Engine) commit(ctx context.Context, requests []*request) {
	batch.Isolate(requests, func(some []*request) batch.Attempt[*request] { return e.commitSome(ctx, some) }, e.refuse)
}

// commitSome sends one transaction with the first requests of a batch.
func (e *Engine) commitSome(ctx context.Context, requests []*request) batch.Attempt[*request] {
	number := e.leads()
	fence, err := e.fence()
	if err != nil {
		e.finish(requests, err)
		return batch.Attempt[*request]{}
	}
	planned, plans, rest := e.prepare(requests)
	attempt := batch.Attempt[*request]{Tried: planned, Left: rest}
	if len(planned) == 0 {
		return attempt
	}
	defer e.index.holdings.answered()
	t := newTransaction(fence)
	t.add(plans)
	results, err := e.send(ctx, "apply", t.operations)
	ownersPerTransaction.Observe(float64(len(planned)))
	if err != nil {
		return e.recover(ctx, err, attempt)
	}
	refused := failed(t.operations, results)
	switch {
	case refused == nil:
		e.acknowledge()
		e.logCommitted(planned, plans)
		e.verify(planned)
	case refused.operation > 0:
		attempt.Outcome, attempt.Err = batch.Refused, refused.err
	default:
		attempt.Outcome = batch.NotSent
		if err := e.fenced(number); err != nil {
			e.finish(requests, err)
			return batch.Attempt[*request]{}
		}
	}
	return attempt
}

// prepare plans a batch. It finishes a request at once if it has nothing to write, waits for a row, is invalid, or its caller's
// context has ended. It returns the other requests with their plans, and in rest the requests beyond maxOperations.
func (e *Engine) prepare(requests []*request) (planned []*request, plans []*plan, rest []*request) {
	e.session.Read(func(r *ovsdbclient.Replica) {
		pl, defers := e.planner(r), e.paced.defers() || e.queue.left() // newer changes do not overtake the ones that are left
		size := 0
		for i, request := range requests {
			if err := request.ctx.Err(); err != nil {
				e.end(request, nil, err)
				continue
			}
			request.defers = defers && !request.late
			pl.defers = request.defers
			p, err := e.plan(pl, request.owner, request.wanted)
			if err != nil || p.empty() {
				e.end(request, p, err)
				continue
			}
			if size += p.size(); size > maxOperations && len(planned) > 0 {
				rest = requests[i:]
				return
			}
			e.paced.planned(p)
			e.index.promise(r, request)
			planned = append(planned, request)
			plans = append(plans, p)
		}
	})
	return planned, plans, rest
}

// plan computes one owner's plan and records the rows that the owner waits for.
func (e *Engine) plan(pl *planner, owner desired.Owner, wanted wantedRows) (*plan, error) {
	p, missing, err := pl.plan(owner, wanted)
	awaited := missing
	if p != nil {
		awaited = p.awaited
	}
	e.wait(owner, awaited)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 && missing[0] == aDatapath {
		return nil, ErrDatapaths
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: a row of table %s, which another object writes, does not exist yet", ErrWaiting, missing[0].table)
	}
	return p, nil
}

// verify finishes requests whose transaction was committed. The replica contains the transaction, so a new plan is empty,
// unless another client changed the rows at the same time or the database stores other values than the translator's.
func (e *Engine) verify(requests []*request) {
	e.index.holdings.committed(requests)
	e.session.Read(func(r *ovsdbclient.Replica) {
		for _, request := range requests {
			p, err := e.plan(e.plannerOf(r, request), request.owner, request.wanted)
			if err == nil && !p.empty() {
				err = errDiverged
			}
			e.end(request, p, err)
		}
	})
}

// refuse finishes a single request that the server refused or did not answer. If a row it needs was deleted meanwhile, the
// result is ErrWaiting.
func (e *Engine) refuse(r *request, err error) {
	e.session.Read(func(replica *ovsdbclient.Replica) {
		p, planErr := e.plan(e.plannerOf(replica, r), r.owner, r.wanted)
		if planErr == nil && p.empty() || errors.Is(planErr, ErrWaiting) { // a transaction without an answer was committed, or a row was deleted
			err = planErr
		}
		e.end(r, p, err)
	})
}

// recover handles a transaction without results. If the connection ended while it was in flight, a barrier makes the replica
// show whether it was committed.
func (e *Engine) recover(ctx context.Context, err error, attempt batch.Attempt[*request]) batch.Attempt[*request] {
	var over error // set when the engine, or this process's term, has ended
	switch {
	case errors.Is(err, ovsdbclient.ErrNotConnected):
		attempt.Outcome = batch.NotSent
		over = e.session.WaitConnected(ctx)
	case errors.Is(err, ovsdbclient.ErrOutcomeUnknown):
		attempt.Outcome, attempt.Err = batch.Lost, fmt.Errorf("%w: %w", ErrNoAnswer, err)
		e.index.holdings.forget(attempt.Tried)
		over = e.barrier(ctx)
	default:
		attempt.Outcome, attempt.Err = batch.Refused, err
	}
	if over != nil {
		e.finish(slices.Concat(attempt.Tried, attempt.Left), over)
		return batch.Attempt[*request]{}
	}
	return attempt
}

func (e *Engine) finish(requests []*request, err error) {
	for _, request := range requests {
		e.end(request, nil, err)
	}
}

// plannerOf returns a planner that leaves the same changes for later as the one of the request's transaction.
func (e *Engine) plannerOf(r *ovsdbclient.Replica, request *request) *planner {
	pl := e.planner(r)
	pl.defers = request.defers
	return pl
}

func (e *Engine) planner(r *ovsdbclient.Replica) *planner {
	return &planner{replica: r, index: e.index, released: map[element][]desired.Owner{}}
}
