// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"context"
	"sync"
	"time"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// maxBatch bounds the number of owners in a transaction: large enough that a burst costs the server little, small enough that a
// reply takes only some milliseconds.
const maxBatch = 200

// request is one Apply that has something to write.
type request struct {
	ctx    context.Context
	owner  desired.Owner
	wanted wantedRows
	came   time.Time
	crowd  bool       // other requests were in flight when it arrived
	late   bool       // it writes what earlier requests of the owner left for later; no caller waits for it
	defers bool       // slow changes are left for later
	done   chan error // buffered; receives the result
}

// queue holds requests until they join a transaction, and counts the unfinished requests of each owner.
type queue struct {
	mu       sync.Mutex
	requests []*request
	busy     map[desired.Owner]int
	wake     chan struct{} // buffered; holds a token when the first request arrives in an empty queue, or the queue reaches full
	// later has the rows of owners with slow changes that are not written yet, and due the rows for which late requests are queued.
	later, due map[desired.Owner]wantedRows
}

func newQueue() *queue {
	return &queue{busy: map[desired.Owner]int{}, wake: make(chan struct{}, 1), later: map[desired.Owner]wantedRows{}, due: map[desired.Owner]wantedRows{}}
}

// put leaves rows of an owner for a late request.
func (q *queue) put(owner desired.Owner, wanted wantedRows) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.later[owner] = wanted
}

// left reports whether put has left rows that are not queued.
func (q *queue) left() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.later) > 0
}

// release queues late requests for the rows that put has left.
func (q *queue) release(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for owner, wanted := range q.later {
		q.due[owner] = wanted
		q.busy[owner]++
		q.requests = append(q.requests, &request{ctx: ctx, owner: owner, late: true, came: time.Now(), done: make(chan error, 1)})
	}
	clear(q.later)
}

// drop forgets the rows that put has left.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.later)
	clear(q.due)
}

func (q *queue) add(r *request) {
	q.mu.Lock()
	r.crowd = len(q.busy) > 0
	q.requests = append(q.requests, r)
	q.busy[r.owner]++
	requests := len(q.requests)
	q.mu.Unlock()
	if requests != 1 && requests != full {
		return
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// waiting describes the queued requests for the gatherer.
func (q *queue) waiting() waiting {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.requests) == 0 {
		return waiting{}
	}
	return waiting{requests: len(q.requests), first: q.requests[0].came, newest: q.requests[len(q.requests)-1].came}
}

// isBusy reports whether a request of the owner is unfinished, or left something for later. The engine then checks the owner's rows when the request
// finishes.
func (q *queue) isBusy(owner desired.Owner) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, later := q.later[owner]
	return later || q.busy[owner] > 0
}

// take removes the next batch: the oldest requests, one per owner. A request replaces what earlier ones left for later.
func (q *queue) take() []*request {
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch, rest []*request
	owners := map[desired.Owner]bool{}
	for _, r := range q.requests {
		if len(batch) == maxBatch || owners[r.owner] {
			rest = append(rest, r)
			continue
		}
		if due, still := q.due[r.owner]; still && r.late {
			r.wanted = due
		} else if r.late { // replaced
			q.done(r)
			continue
		}
		delete(q.later, r.owner)
		delete(q.due, r.owner)
		owners[r.owner] = true
		batch = append(batch, r)
	}
	q.requests = rest
	return batch
}

// finish stores a request's result and ends it.
func (q *queue) finish(r *request, err error) {
	q.mu.Lock()
	q.done(r)
	q.mu.Unlock()
	r.done <- err
}

// done counts a request as finished. The caller holds the lock.
func (q *queue) done(r *request) {
	if q.busy[r.owner]--; q.busy[r.owner] == 0 {
		delete(q.busy, r.owner)
	}
}
