// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/batch"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

// maxBatch bounds the requests of one transaction.
const maxBatch = 100

var (
	// errRefused means that the server returned an error for a transaction.
	errRefused = errors.New("transaction refused by Open vSwitch")
	// errNoAnswer means that a transaction was sent, and the connection ended before the response.
	errNoAnswer = errors.New("the transaction got no answer")
)

// reconnectPause is the interval between two echoes of reconnected.
const reconnectPause = 20 * time.Millisecond

var transactions = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "cni_ovs_transactions_total",
	Help: "Transactions sent to the node's Open vSwitch database. Operations that come at once share one.",
})

// exportMetrics registers the metrics of this package when a process uses the integration bridge. Other processes of the program do not export them.
var exportMetrics = sync.OnceFunc(func() {
	metrics.Registry.MustRegister(transactions)
})

// change holds the operations that a request needs, computed from the current replica.
type change struct {
	operations []ovsdb.Operation
	// added and removed are ports of the bridge: UUIDs, or names of rows that operations insert.
	added, removed []string
}

// add appends operations, or returns the error with which they could not be made.
func (c *change) add(operations []ovsdb.Operation, err error) error {
	c.operations = append(c.operations, operations...)
	return err
}

func (c change) empty() bool {
	return len(c.operations) == 0 && len(c.added) == 0 && len(c.removed) == 0
}

// request waits to become part of a transaction.
type request struct {
	ctx context.Context
	// keys are the objects that the request may change. If two requests share a key, the later one is planned after the earlier one is
	// committed.
	keys []string
	// plan computes the change. The names of rows that it inserts must begin with prefix.
	plan func(ctx context.Context, prefix string) (change, error)

	change change
	done   chan error
}

// committer is the queue of requests. One transaction is in flight at a time; requests that arrive meanwhile share the next one.
type committer struct {
	mu      sync.Mutex
	waiting []*request
	running bool
}

// commit plans and commits a request. It returns when ctx ends, but does not cancel a transaction in flight.
func (b *Bridge) commit(ctx context.Context, keys []string, plan func(context.Context, string) (change, error)) error {
	r := &request{ctx: ctx, keys: keys, plan: plan, done: make(chan error, 1)}
	if b.requests.put(r) {
		go b.work()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// put queues a request and reports whether the caller must start a worker.
func (c *committer) put(r *request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, r)
	begin := !c.running
	c.running = true
	return begin
}

// take returns the requests of the next transaction. If there are none, the worker ends, and the next put requests a new one.
func (c *committer) take() []*request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var batch, rest []*request
	taken := map[string]bool{} // also keys of requests that wait: the order of requests with a common key is kept
	for _, r := range c.waiting {
		if len(batch) < maxBatch && !slices.ContainsFunc(r.keys, func(key string) bool { return taken[key] }) {
			batch = append(batch, r)
		} else {
			rest = append(rest, r)
		}
		for _, key := range r.keys {
			taken[key] = true
		}
	}
	c.waiting, c.running = rest, len(batch) > 0
	return batch
}

func (b *Bridge) work() {
	for requests := b.requests.take(); len(requests) > 0; requests = b.requests.take() {
		batch.Isolate(requests, b.send, func(r *request, err error) { r.done <- err })
	}
}

// send plans requests against the current replica and commits them in one transaction.
func (b *Bridge) send(requests []*request) batch.Attempt[*request] {
	var attempt batch.Attempt[*request]
	for i, r := range requests {
		err := r.ctx.Err() // the caller no longer waits
		if err == nil {
			r.change, err = r.plan(r.ctx, fmt.Sprintf("r%d_", i))
		}
		if err != nil || r.change.empty() {
			r.done <- err
			continue
		}
		attempt.Tried = append(attempt.Tried, r)
	}
	if len(attempt.Tried) == 0 {
		return attempt
	}
	err := b.transact(attempt.Tried)
	switch {
	case errors.Is(err, errRefused):
		attempt.Outcome, attempt.Err = batch.Refused, err
	case errors.Is(err, errNoAnswer) && b.reconnected():
		attempt.Outcome, attempt.Err = batch.Lost, err
	default:
		for _, r := range attempt.Tried {
			r.done <- err
		}
	}
	return attempt
}

// reconnected waits until the client has reconnected and its replica has the outcome of the transaction. The client reconnects by itself,
// but libovsdb v0.8.1 does not report it, and Connected stays true after a connection loss. So this polls with an echo, which fails on
// the closed connection and blocks until the new connection has read the database. It runs only after a transaction without a response.
func (b *Bridge) reconnected() bool {
	return wait.PollUntilContextTimeout(context.Background(), reconnectPause, transactTimeout, true, func(ctx context.Context) (bool, error) {
		return b.client.Echo(ctx) == nil, nil
	}) == nil
}

func (b *Bridge) transact(requests []*request) error {
	if !b.client.Connected() {
		return ErrDisconnected
	}
	// The transaction has its own timeout because it serves several callers.
	ctx, cancel := context.WithTimeout(context.Background(), transactTimeout)
	defer cancel()
	operations, err := b.merge(ctx, requests)
	if err != nil {
		return err
	}
	transactions.Inc()
	start := time.Now()
	results, err := b.client.Transact(ctx, operations...)
	var refused error
	if err == nil {
		_, refused = ovsdb.CheckOperationResults(results, operations)
	}
	ovsdbclient.Observe("Open_vSwitch", "transact", err == nil && refused == nil, time.Since(start))
	switch {
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("%w: %w (%w)", errNoAnswer, ErrDisconnected, err)
	case err != nil:
		return fmt.Errorf("%w (%w)", ErrDisconnected, err)
	case refused != nil:
		return fmt.Errorf("%w: %w", errRefused, refused)
	}
	return nil
}

// merge returns the operations of requests and one mutation of the bridge's ports. ovsdb-server deletes rows that are no longer
// referenced.
func (b *Bridge) merge(ctx context.Context, requests []*request) ([]ovsdb.Operation, error) {
	var operations []ovsdb.Operation
	var added, removed []string
	for _, r := range requests {
		operations = append(operations, r.change.operations...)
		added = append(added, r.change.added...)
		removed = append(removed, r.change.removed...)
	}
	if len(added)+len(removed) == 0 {
		return operations, nil
	}
	bridge, err := b.row(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(removed)
	removed = slices.Compact(removed)
	limited := change{}
	for _, port := range removed {
		if err := b.unlimit(ctx, &limited, port); err != nil {
			return nil, err
		}
	}
	operations = append(operations, limited.operations...)
	var mutations []model.Mutation
	for mutator, ports := range map[ovsdb.Mutator][]string{
		ovsdb.MutateOperationDelete: removed, ovsdb.MutateOperationInsert: added,
	} {
		if len(ports) > 0 {
			mutations = append(mutations, model.Mutation{Field: &bridge.Ports, Mutator: mutator, Value: ports})
		}
	}
	mutation, err := b.client.Where(bridge).Mutate(bridge, mutations...)
	if err != nil {
		return nil, fmt.Errorf("change ports of %s: %w", IntegrationBridge, err)
	}
	return append(operations, mutation...), nil
}
