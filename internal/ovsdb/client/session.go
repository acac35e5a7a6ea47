// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

var (
	// ErrNotConnected reports that a transaction was not sent.
	ErrNotConnected = errors.New("not connected to the database")
	// ErrOutcomeUnknown reports that a transaction was sent and its reply did not arrive: it may be committed now or later.
	ErrOutcomeUnknown = errors.New("outcome of the transaction is unknown")
)

// northboundSchema is the schema from which the models were generated.
var northboundSchema = sync.OnceValue(nb.Schema)

// Session is a connection to the leader of the northbound database with a Replica of it. It reconnects automatically to the
// endpoint that leads. The replica survives a disconnection. After the reconnection the observer gets the changes made
// meanwhile.
//
// A session does not use libovsdb's own client, which lacks these guarantees: it drops events when their buffer is full, it
// drops an update that fails to apply without an error, it clones a whole set for a change of one member, and the caller of a
// transaction cannot distinguish "not sent" from "sent, reply lost". A session uses libovsdb's models, schema and update rules.
type Session struct {
	options Options
	cancel  context.CancelFunc
	over    chan struct{}
	timeout time.Duration // of a transaction

	mu       sync.RWMutex // guards replica and observer
	replica  *Replica
	observer func(*Replica, Update)

	link link
}

// Result is the result of one operation. Transact returns one result per operation, up to the first that failed. It returns one
// more if the commit failed.
type Result struct {
	Count   int    `json:"count"`
	Error   string `json:"error"`
	Details string `json:"details"`
}

// Northbound connects to the leader of the northbound database. It returns when the replica is complete, or an error when ctx
// ends. The session then lasts until Close.
func Northbound(ctx context.Context, o Options) (*Session, error) {
	clientModel, err := nb.FullDatabaseModel()
	if err != nil {
		return nil, fmt.Errorf("model of %s: %w", northboundDB, err)
	}
	dbModel, problems := model.NewDatabaseModel(northboundSchema(), clientModel)
	if len(problems) > 0 {
		return nil, fmt.Errorf("model of %s: %w", northboundDB, errors.Join(problems...))
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Session{
		options: o,
		cancel:  cancel,
		over:    make(chan struct{}),
		timeout: transactTimeout,
		replica: newReplica(dbModel),
		link:    newLink(o.Endpoints),
	}
	go s.run(life)
	if err := s.WaitConnected(ctx); err != nil {
		last := s.link.lastError()
		s.Close()
		return nil, errors.Join(err, last)
	}
	return s, nil
}

// Close ends the session.
func (s *Session) Close() {
	s.cancel()
	<-s.over
}

// SetEndpoints changes the servers to connect to. A connection to a server that is still listed stays open.
func (s *Session) SetEndpoints(endpoints []string) { s.link.setEndpoints(slices.Clone(endpoints)) }

// WaitConnected waits until the session is connected and its replica is up to date, or ctx ends.
func (s *Session) WaitConnected(ctx context.Context) error {
	select {
	case <-s.link.connected():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("connect to %s: %w", northboundDB, ctx.Err())
	}
}

// Transact sends operations as one transaction. When it returns results, the replica contains the transaction's changes. Its
// errors are ErrNotConnected, ErrOutcomeUnknown, or the reason why the server refused the request as a whole.
func (s *Session) Transact(ctx context.Context, operations []ovsdb.Operation) ([]Result, error) {
	c := s.link.current()
	if c == nil {
		return nil, ErrNotConnected
	}
	params := make([]any, 0, len(operations)+1)
	params = append(params, northboundDB)
	for _, operation := range operations {
		params = append(params, operation)
	}
	var results []Result
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := roundTrip(limited, c, "transact", params, func(raw json.RawMessage) error {
		return json.Unmarshal(raw, &results)
	})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		c.close() // the server answers echo requests, but not this transaction
	}
	switch {
	case errors.Is(err, errClosed):
		return nil, ErrNotConnected
	case errors.Is(err, errRefused):
		return nil, fmt.Errorf("transact: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	c.useful.Store(true)
	return results, nil
}

// Read calls f with the replica, which does not change during the call. f must be quick and must not call Read.
func (s *Session) Read(f func(*Replica)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f(s.replica)
}

// Observe calls f with the whole content of the replica, and then with each change, in order, before any later reply is
// delivered. f must be quick and must not call the session. A session has one observer.
func (s *Session) Observe(f func(*Replica, Update)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observer = f
	f(s.replica, s.replica.everything())
}

// populate applies the reply to the monitor request: the whole database, or the changes since the last known transaction.
func (s *Session) populate(tables tableUpdates, whole bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !whole {
		return s.update(tables)
	}
	newer := newReplica(s.replica.model)
	if _, err := newer.apply(tables); err != nil {
		return err
	}
	changes := s.replica.changesTo(newer)
	s.replica = newer
	if s.observer != nil {
		s.observer(newer, changes)
	}
	return nil
}

// update applies a notification. The caller holds mu.
func (s *Session) update(tables tableUpdates) error {
	changes, err := s.replica.apply(tables)
	if s.observer != nil { // the changes before an error are in the replica, and the next update does not report them again
		s.observer(s.replica, changes)
	}
	return err
}
