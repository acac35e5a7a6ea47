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
	done   chan error // buffered; receives the result
}

// queue holds requests until they join a transaction, and counts the unfinished requests of each owner.
type queue struct {
	mu       sync.Mutex
	requests []*request
	busy     map[desired.Owner]int
	wake     chan struct{} // buffered; holds a token when the first request arrives in an empty queue, or the queue reaches full
}

func newQueue() *queue {
	return &queue{busy: map[desired.Owner]int{}, wake: make(chan struct{}, 1)}
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

// isBusy reports whether a request of the owner is unfinished. The engine then checks the owner's rows when the request
// finishes.
func (q *queue) isBusy(owner desired.Owner) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.busy[owner] > 0
}

// take removes the next batch: the oldest requests, one per owner.
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
		owners[r.owner] = true
		batch = append(batch, r)
	}
	q.requests = rest
	return batch
}

// finish stores a request's result and ends it.
func (q *queue) finish(r *request, err error) {
	q.mu.Lock()
	if q.busy[r.owner]--; q.busy[r.owner] == 0 {
		delete(q.busy, r.owner)
	}
	q.mu.Unlock()
	r.done <- err
}
