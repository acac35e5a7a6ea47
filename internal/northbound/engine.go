// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package northbound makes the northbound database equal to the rows that translators want. It is level-based: one operation,
// Apply, serves creation, change, deletion, restart and repair. docs/development/northbound.md has its guarantees and the owners
// of all rows, docs/decisions the reasons.
//
// How it works: a session keeps an exact replica of the database. Apply compares an owner's rows with the replica and queues
// the difference. One goroutine commits: it plans the queued requests against the current replica, sends one transaction, and
// checks that the replica holds the result before it reports success. Each transaction is fenced by the leader's term.
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
	// ErrWaiting reports that a parent or a referenced row is not in the database yet. When the row arrives, the engine calls
	// the owner's subscribers.
	ErrWaiting = errors.New("waiting for a row of another owner")
	// ErrDeposed reports that this process does not lead: another process took a later term, or Lead has not been called. The
	// state lasts until the next call of Lead.
	ErrDeposed = errors.New("not the leader of the northbound database")

	errStopped = errors.New("engine has stopped")
)

// Engine applies desired rows to the northbound database. All methods are safe for concurrent use.
type Engine struct {
	session  *ovsdbclient.Session
	log      logr.Logger
	queue    *queue
	notifier *notifier
	refusals *refusals
	index    *index // guarded by the session's lock
	paced    pacer
	stopped  chan struct{}

	canaryInterval time.Duration

	mu           sync.Mutex
	term         term
	acknowledged time.Time // the last commit of this process
}

// CanaryInterval is the longest time between two commits of a leader that can write: after half of it without a commit, the leader
// writes a canary transaction. The check runs every half interval.
const CanaryInterval = 30 * time.Second

// New returns an engine on a connected session. It indexes the rows of the database; it writes nothing until Start and Lead.
func New(session *ovsdbclient.Session, log logr.Logger) (*Engine, error) {
	if session == nil {
		return nil, errors.New("northbound engine needs a session")
	}
	exportMetrics()
	e := &Engine{
		session:  session,
		log:      log,
		queue:    newQueue(),
		notifier: newNotifier(),
		refusals: newRefusals(),
		index:    newIndex(),
		paced:    newPacer(),
		stopped:  make(chan struct{}),

		canaryInterval: CanaryInterval,
	}
	session.Observe(e.observe)
	return e, nil
}

// Start runs the engine until ctx ends: it commits queued requests and calls subscribers. It may run only once.
func (e *Engine) Start(ctx context.Context) error {
	defer close(e.stopped)
	var running sync.WaitGroup
	running.Go(func() { e.notifier.run(ctx) })
	e.commitLoop(ctx)
	running.Wait()
	return nil
}

// NeedLeaderElection makes a manager start the engine on standbys too, so that their caches are warm. A leader then calls Lead.
func (e *Engine) NeedLeaderElection() bool { return false }

// Apply makes the rows of o equal to want, in one transaction. It is idempotent: applying the same rows again sends nothing.
// want == nil deletes all rows of o. Apply returns
//
//   - nil when the database holds the rows, except slow changes within pace of the last ones: these follow in another transaction, and the owner's subscribers
//     are called if they fail;
//   - ErrWaiting, at once and without a write, when a parent or a referenced row of another owner does not exist, or when there is
//     no room for another datapath (ErrDatapaths);
//   - ErrDeposed when this process does not lead;
//   - ErrNoAnswer when the server drops, or does not answer, transactions with these rows;
//   - ctx's error when ctx ends first; the rows may still be written;
//   - otherwise the error that the server, or the engine itself, found in the rows.
func (e *Engine) Apply(ctx context.Context, o desired.Owner, want []desired.Row) error {
	err := e.apply(ctx, o, want)
	e.refusals.note(o, err)
	e.logWaiting(o, err)
	if err != nil {
		return owned(o, err)
	}
	return nil
}

// notOfRows are errors of Apply that are unrelated to the owner's rows.
var notOfRows = []error{ErrDeposed, errStopped, errDiverged, errRests, context.Canceled, context.DeadlineExceeded}

// IsRefusal reports whether an error of Apply is caused by the owner's rows, and not by the connection or the process.
func IsRefusal(err error) bool {
	return err != nil && !errors.Is(err, ErrWaiting) && !slices.ContainsFunc(notOfRows, func(other error) bool { return errors.Is(err, other) })
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
		e.session.Read(func(r *ovsdbclient.Replica) {
			pl := e.planner(r)
			pl.optimistic = true
			p, err = e.plan(pl, o, wanted)
		})
		if err != nil || p.empty() {
			return err
		}
	}
	if len(want) > 0 { // the back-off does not delay a deletion
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

// Owners returns the owners of a kind that have rows in the database, whether or not their Kubernetes objects still exist.
func (e *Engine) Owners(kind string) []desired.Owner {
	var owners []desired.Owner
	e.session.Read(func(*ovsdbclient.Replica) { owners = slices.Collect(maps.Keys(e.index.owners[kind])) })
	return owners
}

// Subscribe makes the engine call f with each owner of a kind that needs another Apply: another client changed or deleted one
// of its rows or a set membership of one, a row that the owner waits for has arrived, or the status of a BFD session of the owner has changed.
// f must not block. Spurious calls are possible; no call is missed.
func (e *Engine) Subscribe(kind string, f func(desired.Owner)) { e.notifier.subscribe(kind, f) }

// Of returns copies of an owner's rows in one table, selected by the model type.
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

// Get returns a copy of a row, or nil if it does not exist or is not in the table of the model type.
func Get[T any](e *Engine, ref desired.Ref) *T {
	t := northbound().tables[reflect.TypeFor[*T]()]
	if t == nil {
		return nil
	}
	var found *T
	e.session.Read(func(r *ovsdbclient.Replica) {
		ref = e.index.incarnations.of(t.name, ref)
		if row, ok := r.Row(t.name, ref.UUID()).(*T); ok {
			found = model.Clone(row).(*T)
		}
	})
	return found
}

// observe processes one update of the replica. It does not notify owners with a request in progress: verify checks their rows
// when it finishes.
func (e *Engine) observe(r *ovsdbclient.Replica, u ovsdbclient.Update) {
	fx := e.index.update(r, u)
	if fx.global != nil {
		e.follow(fx.global)
	}
	e.notifier.arrived(fx.arrived)
	e.notifier.notify(slices.DeleteFunc(fx.touched, e.queue.isBusy))
}

func (e *Engine) wait(owner desired.Owner, missing []rowID) { e.notifier.wait(owner, missing) }
