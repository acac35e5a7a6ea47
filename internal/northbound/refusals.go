// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// ErrNoAnswer reports that the server repeatedly closed the connection, or did not answer in time, after it received the
// owner's rows. The last of these transactions contained no rows of other owners. Until a back-off ends, Apply returns
// ErrNoAnswer without another attempt.
var ErrNoAnswer = errors.New("the northbound database does not answer when it gets these rows")

// Bounds of the back-off after ErrNoAnswer. Each attempt may force a reconnection on all other owners.
const (
	minRest = time.Second
	maxRest = 5 * time.Minute
)

// Refusal describes why an owner's rows are not in the database although this process leads: the server or the engine refused
// them.
type Refusal struct {
	Owner desired.Owner
	Err   error
	Since time.Time
}

// refusals stores the result of the last refused Apply, by owner.
type refusals struct {
	mu sync.Mutex
	of map[desired.Owner]*refusal
}

type refusal struct {
	err   error
	since time.Time
	rest  time.Duration // duration of the back-off; zero unless the last refusal was ErrNoAnswer
	until time.Time     // end of the back-off
}

func newRefusals() *refusals { return &refusals{of: map[desired.Owner]*refusal{}} }

// note stores the result of an Apply. Results unrelated to the rows change nothing.
func (r *refusals) note(owner desired.Owner, err error) {
	if err != nil && !errors.Is(err, ErrWaiting) && !IsRefusal(err) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of[owner]
	if err == nil || errors.Is(err, ErrWaiting) {
		if known == nil {
			return
		}
		if known.err = nil; known.rest == 0 { // an owner with a back-off keeps it, so that its next ErrNoAnswer doubles it
			delete(r.of, owner)
		}
		r.count()
		return
	}
	if known == nil {
		known = &refusal{}
		r.of[owner] = known
	}
	if known.err == nil {
		known.since = time.Now()
	}
	known.err = err
	r.count()
	if !errors.Is(err, ErrNoAnswer) {
		known.rest = 0
		return
	}
	known.rest = min(max(2*known.rest, minRest), maxRest)
	known.until = time.Now().Add(known.rest)
}

// count updates the metric and drops back-offs that ended more than maxRest ago.
func (r *refusals) count() {
	refused := 0
	for owner, known := range r.of {
		switch {
		case known.err != nil:
			refused++
		case time.Since(known.until) > maxRest:
			delete(r.of, owner)
		}
	}
	refusedOwners.Set(float64(refused))
}

// errRests marks an Apply that was skipped because of a back-off.
var errRests = errors.New("next attempt")

// rests returns an error while the owner's back-off lasts.
func (r *refusals) rests(owner desired.Owner) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.of[owner]
	if known == nil || known.rest == 0 {
		return nil
	}
	if left := time.Until(known.until); left > 0 {
		return fmt.Errorf("%w (%w in %s)", ErrNoAnswer, errRests, left.Round(time.Second))
	}
	return nil
}

// Refused returns the owners whose rows were refused when they were last applied, in no order.
func (e *Engine) Refused() []Refusal {
	e.refusals.mu.Lock()
	defer e.refusals.mu.Unlock()
	all := make([]Refusal, 0, len(e.refusals.of))
	for owner, known := range e.refusals.of {
		if known.err != nil {
			all = append(all, Refusal{Owner: owner, Err: known.err, Since: known.since})
		}
	}
	return all
}
