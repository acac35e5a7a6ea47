// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"context"
	"errors"
	"time"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// slowTables are the tables of which each change makes ovn-northd compute everything again: a QoS row changes its logical switch, and ovn-northd 25.03 has no incremental
// computation for it. Other owners never need these rows.
var slowTables = []string{nb.QoSTable}

// pace is the shortest time between two transactions with slow changes. The first change after it is in the transaction of the owner's other changes; the ones that follow
// share a later transaction, so that a burst of pods with limits costs ovn-northd some computations, and not one for each pod.
const pace = 500 * time.Millisecond

// pacer knows when slow changes may be written next. Only the goroutine that commits uses it.
type pacer struct {
	every time.Duration
	next  time.Time
	timer *time.Timer // fires at next if something is left for later
}

func newPacer() pacer {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return pacer{every: pace, timer: timer}
}

// defers reports whether slow changes are left for later.
func (p *pacer) defers() bool { return time.Now().Before(p.next) }

// planned records a plan that is about to be written.
func (p *pacer) planned(of *plan) {
	if of.slow {
		p.next = time.Now().Add(p.every)
	}
}

// slow records a slow change in a plan, and reports whether it is left out.
func (pl *planner) slow(p *plan) bool {
	p.slow, p.later = p.slow || !pl.defers, p.later || pl.defers
	return pl.defers
}

// release queues the changes that were left for later, if their time has come.
func (e *Engine) release(ctx context.Context) {
	switch {
	case !e.paced.defers():
		e.queue.release(ctx)
	case e.queue.left():
		e.paced.timer.Reset(time.Until(e.paced.next))
	}
}

// end finishes a request. p is the plan that was made last; nil if there is none. What it left out is written later.
func (e *Engine) end(r *request, p *plan, err error) {
	if err == nil && p != nil && p.later {
		e.queue.put(r.owner, r.wanted)
	}
	e.queue.finish(r, err)
	if r.late {
		e.refusals.note(r.owner, err)
		if IsRefusal(err) || errors.Is(err, errDiverged) {
			e.notifier.notify([]desired.Owner{r.owner})
		}
	}
}
