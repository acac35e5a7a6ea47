// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
	for {
		select {
		case <-e.queue.wake:
		case <-ctx.Done():
			return
		}
		for e.gather(ctx, &g) {
			batch := e.queue.take()
			e.commit(ctx, batch)
			g.committed(time.Now(), len(batch), slices.ContainsFunc(batch, func(r *request) bool { return r.crowd }))
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

// commit writes a batch in one transaction. When the server refuses it, each half is tried alone, so that one bad owner costs
// log n transactions and fails by itself.
func (e *Engine) commit(ctx context.Context, batch []*request) {
	for len(batch) > 0 {
		batch = e.commitSome(ctx, batch)
	}
}

// commitSome makes one transaction of the first requests of a batch and returns those that are still to do.
func (e *Engine) commitSome(ctx context.Context, batch []*request) []*request {
	number := e.leads()
	fence, err := e.fence()
	if err != nil {
		e.finish(batch, err)
		return nil
	}
	planned, plans, rest := e.prepare(batch)
	if len(planned) == 0 {
		return rest
	}
	t := newTransaction(fence)
	t.add(plans)
	results, err := e.send(ctx, "apply", t.operations)
	ownersPerTransaction.Observe(float64(len(planned)))
	if err != nil {
		return e.recover(ctx, err, planned, rest)
	}
	refused := failed(t.operations, results)
	switch {
	case refused == nil:
		e.verify(planned)
	case refused.operation == 0:
		e.depose(number)
		e.finish(planned, ErrDeposed)
	case len(planned) == 1:
		e.refuse(planned[0], refused)
	default:
		half := len(planned) / 2
		e.commit(ctx, planned[:half])
		e.commit(ctx, planned[half:])
	}
	return rest
}

// prepare plans a batch. It finishes requests that have nothing to write, that wait, that make no sense or that nobody waits for,
// and returns the others with their plans, and what exceeds one transaction.
func (e *Engine) prepare(batch []*request) (planned []*request, plans []*plan, rest []*request) {
	e.session.Read(func(r *ovsdbclient.Replica) {
		pl := e.planner(r)
		size := 0
		for i, request := range batch {
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
				rest = batch[i:]
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
func (e *Engine) verify(batch []*request) {
	e.session.Read(func(r *ovsdbclient.Replica) {
		for _, request := range batch {
			p, err := e.plan(e.planner(r), request.owner, request.wanted)
			if err == nil && !p.empty() {
				err = errDiverged
			}
			e.queue.finish(request, err)
		}
	})
}

// refuse finishes a request that the server refused by itself, unless a row it needs vanished just now: then it waits.
func (e *Engine) refuse(r *request, refused *failure) {
	err := refused.err
	e.session.Read(func(replica *ovsdbclient.Replica) {
		if _, planErr := e.plan(e.planner(replica), r.owner, r.wanted); errors.Is(planErr, ErrWaiting) {
			err = planErr
		}
		e.queue.finish(r, err)
	})
}

// recover handles a transaction without results and returns what is to be planned anew.
func (e *Engine) recover(ctx context.Context, err error, planned, rest []*request) []*request {
	switch {
	case errors.Is(err, ovsdbclient.ErrNotConnected):
		err = e.session.WaitConnected(ctx)
	case errors.Is(err, ovsdbclient.ErrOutcomeUnknown):
		err = e.barrier(ctx)
	}
	batch := slices.Concat(planned, rest)
	if err != nil {
		e.finish(batch, err)
		return nil
	}
	return batch
}

func (e *Engine) finish(batch []*request, err error) {
	for _, request := range batch {
		e.queue.finish(request, err)
	}
}

func (e *Engine) planner(r *ovsdbclient.Replica) *planner {
	return &planner{replica: r, index: e.index, released: map[element][]desired.Owner{}}
}
