// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package northbound makes the northbound database equal to what translators want. It is level-based: one operation, Apply, serves
// creation, change, deletion, restart and repair. docs/decisions holds the reasons.
//
// How it works: a session keeps an exact replica of the database. Apply compares an owner's rows with it and queues the difference.
// One goroutine commits: it plans whatever is queued against the replica as it is then, sends one transaction, and checks
// that the replica holds the result before it says so. Each transaction is fenced by the leader's term.
package northbound

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/model"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

var (
	// ErrWaiting says that a parent or a referenced row is not in the database yet. Its arrival calls the owner's subscriber.
	ErrWaiting = errors.New("waiting for a row of another owner")
	// ErrDeposed says that this process does not lead: another has taken a later term, or Lead has not been called. It stays so
	// until Lead is called.
	ErrDeposed = errors.New("not the leader of the northbound database")

	errStopped = errors.New("engine has stopped")
)

// Engine applies desired rows to the northbound database. All methods may be called at any time by any goroutine.
type Engine struct {
	session  *ovsdbclient.Session
	log      logr.Logger
	queue    *queue
	notifier *notifier
	refusals *refusals
	index    *index // guarded by the session's lock
	stopped  chan struct{}

	canaryInterval time.Duration

	mu           sync.Mutex
	term         term
	acknowledged time.Time // the last commit of this process
}

// CanaryInterval is how often, at least, a leader that can write commits a transaction.
const CanaryInterval = 30 * time.Second

// New returns an engine on a connected session. It reads what the database has; it writes nothing until Start and Lead.
func New(session *ovsdbclient.Session, log logr.Logger) (*Engine, error) {
	if session == nil {
		return nil, errors.New("northbound engine needs a session")
	}
	e := &Engine{
		session:  session,
		log:      log,
		queue:    newQueue(),
		notifier: newNotifier(),
		refusals: newRefusals(),
		index:    newIndex(),
		stopped:  make(chan struct{}),

		canaryInterval: CanaryInterval,
	}
	session.Observe(e.observe)
	return e, nil
}

// Start runs the engine until ctx ends: it commits what Apply queues and calls subscribers. It may run once.
func (e *Engine) Start(ctx context.Context) error {
	defer close(e.stopped)
	var running sync.WaitGroup
	running.Go(func() { e.notifier.run(ctx) })
	e.commitLoop(ctx)
	running.Wait()
	return nil
}

// NeedLeaderElection makes a manager start the engine on standbys too, whose caches are then warm. Lead is what a leader calls.
func (e *Engine) NeedLeaderElection() bool { return false }

// Apply makes the rows that o owns equal to want, in one transaction. Applying the same rows again sends nothing, and want == nil
// deletes. It returns nil when the database holds the rows; ErrWaiting, at once, when a parent or a referenced row of another owner
// is not there, and then has written nothing; ErrDeposed when this process does not lead; ErrNoAnswer when the server drops what holds
// these rows; and otherwise what the server, or the engine itself, found wrong with them. When ctx ends first the rows may still be written.
func (e *Engine) Apply(ctx context.Context, o desired.Owner, want []desired.Row) error {
	err := e.apply(ctx, o, want)
	e.refusals.note(o, err)
	if err != nil {
		return owned(o, err)
	}
	return nil
}

func (e *Engine) apply(ctx context.Context, o desired.Owner, want []desired.Row) error {
	if e.leads() == "" {
		return ErrDeposed
	}
	wanted, err := interpretAll(o, want)
	if err != nil {
		return err
	}
	if !e.queue.isBusy(o) {
		var p *plan
		e.session.Read(func(r *ovsdbclient.Replica) { p, err = e.plan(e.planner(r), o, wanted) })
		if err != nil || p.empty() {
			return err
		}
	}
	if len(want) > 0 { // a deletion does not rest
		if err := e.refusals.rests(o); err != nil {
			return err
		}
	}
	r := &request{ctx: ctx, owner: o, wanted: wanted, came: time.Now(), done: make(chan error, 1)}
	e.queue.add(r)
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-e.stopped:
		return errStopped
	}
}

// Owners returns the owners of a kind that have rows in the database, whether or not their objects still exist.
func (e *Engine) Owners(kind string) []desired.Owner {
	var owners []desired.Owner
	e.session.Read(func(*ovsdbclient.Replica) { owners = slices.Collect(maps.Keys(e.index.owners[kind])) })
	return owners
}

// Subscribe makes the engine call f with each owner of a kind that has to be applied again: someone else changed or deleted a row of
// it or its place in a set, or a row that it waits for is there. f must not block. Calls may be more than needed, never fewer.
func (e *Engine) Subscribe(kind string, f func(desired.Owner)) { e.notifier.subscribe(kind, f) }

// Of returns copies of the rows of one table, named by its model, that an owner has.
func Of[T any](e *Engine, owner desired.Owner) []*T {
	var rows []*T
	e.session.Read(func(r *ovsdbclient.Replica) {
		for _, id := range e.index.rows(owner) {
			if row, ok := r.Row(id.table, id.uuid).(*T); ok {
				rows = append(rows, model.Clone(row).(*T))
			}
		}
	})
	return rows
}

// Get returns a copy of a row, nil when it is not there or not of the table that the model names.
func Get[T any](e *Engine, ref desired.Ref) *T {
	t := northbound().tables[reflect.TypeFor[*T]()]
	if t == nil {
		return nil
	}
	var found *T
	e.session.Read(func(r *ovsdbclient.Replica) {
		if row, ok := r.Row(t.name, ref.UUID()).(*T); ok {
			found = model.Clone(row).(*T)
		}
	})
	return found
}

// observe follows the replica. Owners with a request in progress are judged when it finishes.
func (e *Engine) observe(r *ovsdbclient.Replica, u ovsdbclient.Update) {
	fx := e.index.update(r, u)
	if fx.global != nil {
		e.follow(fx.global)
	}
	e.notifier.arrived(fx.arrived)
	e.notifier.notify(slices.DeleteFunc(fx.touched, e.queue.isBusy))
}

func (e *Engine) wait(owner desired.Owner, missing []rowID) { e.notifier.wait(owner, missing) }
