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

// maxOperations bounds a transaction in size; a single owner may exceed it.
const maxOperations = 4000

// errDiverged says that rows are not what was just written: someone else writes them too.
var errDiverged = errors.New("rows changed while they were written")

// commitLoop commits what is queued until ctx ends. One transaction is in flight at a time; what comes meanwhile, and in the
// gatherer's window, shares the next. An Apply that waits is its caller's back-pressure.
func (e *Engine) commitLoop(ctx context.Context) {
	var g gatherer
	canary := time.NewTicker(e.canaryInterval / 2)
	defer canary.Stop()
	for {
		select {
		case <-e.queue.wake:
		case <-canary.C:
			e.canary(ctx)
			continue
		case <-ctx.Done():
			return
		}
		for e.gather(ctx, &g) {
			requests := e.queue.take()
			e.commit(ctx, requests)
			g.committed(time.Now(), len(requests), slices.ContainsFunc(requests, func(r *request) bool { return r.crowd }))
		}
	}
}

// gather waits until the next transaction is due. It is false when there is nothing to write, or ctx has ended.
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

// commit writes a batch in one transaction, or in more when the server refuses it, or drops it, because of one owner: that one fails by itself.
func (e *Engine) commit(ctx context.Context, requests []*request) {
	batch.Isolate(requests, func(some []*request) batch.Attempt[*request] { return e.commitSome(ctx, some) }, e.refuse)
}

// commitSome makes one transaction of the first requests of a batch.
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

// prepare plans a batch. It finishes requests that have nothing to write, that wait, that make no sense or that nobody waits for,
// and returns the others with their plans, and what exceeds one transaction.
func (e *Engine) prepare(requests []*request) (planned []*request, plans []*plan, rest []*request) {
	e.session.Read(func(r *ovsdbclient.Replica) {
		pl := e.planner(r)
		size := 0
		for i, request := range requests {
			if err := request.ctx.Err(); err != nil {
				e.queue.finish(request, err)
				continue
			}
			p, err := e.plan(pl, request.owner, request.wanted)
			if err != nil || p.empty() {
				e.queue.finish(request, err)
				continue
			}
			if size += p.size(); size > maxOperations && len(planned) > 0 {
				rest = requests[i:]
				return
			}
			planned = append(planned, request)
			plans = append(plans, p)
		}
	})
	return planned, plans, rest
}

// plan makes one owner's plan and notes what it waits for.
func (e *Engine) plan(pl *planner, owner desired.Owner, wanted wantedRows) (*plan, error) {
	p, missing, err := pl.plan(owner, wanted)
	e.wait(owner, missing)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrWaiting, missing[0].table)
	}
	return p, nil
}

// verify finishes requests whose transaction was committed. The replica has it, so that the plan is now empty, unless someone else
// changed the rows at the same time, or the database does not keep what the translator says.
func (e *Engine) verify(requests []*request) {
	e.session.Read(func(r *ovsdbclient.Replica) {
		for _, request := range requests {
			p, err := e.plan(e.planner(r), request.owner, request.wanted)
			if err == nil && !p.empty() {
				err = errDiverged
			}
			e.queue.finish(request, err)
		}
	})
}

// refuse finishes a request that the server refused, or did not answer, by itself, unless a row it needs vanished just now: then it waits.
func (e *Engine) refuse(r *request, err error) {
	e.session.Read(func(replica *ovsdbclient.Replica) {
		if _, planErr := e.plan(e.planner(replica), r.owner, r.wanted); errors.Is(planErr, ErrWaiting) {
			err = planErr
		}
		e.queue.finish(r, err)
	})
}

// recover handles a transaction without results. If the connection ended during it, the replica shows after a barrier whether it was
// committed.
func (e *Engine) recover(ctx context.Context, err error, attempt batch.Attempt[*request]) batch.Attempt[*request] {
	var over error // of the engine, or of this process's term
	switch {
	case errors.Is(err, ovsdbclient.ErrNotConnected):
		attempt.Outcome = batch.NotSent
		over = e.session.WaitConnected(ctx)
	case errors.Is(err, ovsdbclient.ErrOutcomeUnknown):
		attempt.Outcome, attempt.Err = batch.Lost, fmt.Errorf("%w: %w", ErrNoAnswer, err)
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
		e.queue.finish(request, err)
	}
}

func (e *Engine) planner(r *ovsdbclient.Replica) *planner {
	return &planner{replica: r, index: e.index, released: map[element][]desired.Owner{}}
}
