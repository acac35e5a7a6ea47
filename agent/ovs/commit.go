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
)

// maxBatch bounds the requests of one transaction.
const maxBatch = 100

var (
	// errRefused says that the server answered a transaction with an error.
	errRefused = errors.New("transaction refused by Open vSwitch")
	// errNoAnswer says that a transaction was sent, and the connection ended before the answer.
	errNoAnswer = errors.New("the transaction got no answer")
)

// reconnectPause is between two echoes of reconnected.
const reconnectPause = 20 * time.Millisecond

var transactions = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "cni_ovs_transactions_total",
	Help: "Transactions sent to the node's Open vSwitch database. Operations that come at once share one.",
})

func init() { metrics.Registry.MustRegister(transactions) }

// change is what a request asks of the database, in terms of the replica as it is.
type change struct {
	operations []ovsdb.Operation
	// added and removed are ports of the bridge: UUIDs, or names of rows that operations insert.
	added, removed []string
}

func (c change) empty() bool {
	return len(c.operations) == 0 && len(c.added) == 0 && len(c.removed) == 0
}

// request waits to become part of a transaction.
type request struct {
	ctx context.Context
	// keys are what the request is about. Of two requests with a key in common the later is planned when the earlier is committed.
	keys []string
	// plan is given a prefix for the names of rows that it inserts.
	plan func(ctx context.Context, prefix string) (change, error)

	change change
	done   chan error
}

// committer is the queue of requests. One transaction is under way at a time, and what comes meanwhile goes with the next.
type committer struct {
	mu      sync.Mutex
	waiting []*request
	running bool
}

// commit has a request planned and committed. When ctx ends first, it is committed all the same if it was under way.
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

// put reports whether the caller has to see to it that the queue is worked off.
func (c *committer) put(r *request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, r)
	begin := !c.running
	c.running = true
	return begin
}

// take returns the requests of the next transaction; none when there are no more, and then whoever puts the next one begins anew.
func (c *committer) take() []*request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var batch, rest []*request
	taken := map[string]bool{} // also by those that have to wait: order is kept
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

// send plans requests as the replica is now and commits them in one transaction.
func (b *Bridge) send(requests []*request) batch.Attempt[*request] {
	var attempt batch.Attempt[*request]
	for i, r := range requests {
		err := r.ctx.Err() // the caller has given up
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

// reconnected waits until the client has connected again and its replica has the outcome of the transaction. The client reconnects by itself, but
// libovsdb v0.8.1 reports no reconnection, and Connected stays true after a loss. So this polls with an echo, which the closed connection refuses
// and which the client holds back until the new connection has read the database. It runs only after a lost transaction.
func (b *Bridge) reconnected() bool {
	return wait.PollUntilContextTimeout(context.Background(), reconnectPause, transactTimeout, true, func(ctx context.Context) (bool, error) {
		return b.client.Echo(ctx) == nil, nil
	}) == nil
}

func (b *Bridge) transact(requests []*request) error {
	if !b.client.Connected() {
		return ErrDisconnected
	}
	// The transaction is not one caller's: it ends in its own time.
	ctx, cancel := context.WithTimeout(context.Background(), transactTimeout)
	defer cancel()
	operations, err := b.merge(ctx, requests)
	if err != nil {
		return err
	}
	transactions.Inc()
	results, err := b.client.Transact(ctx, operations...)
	switch {
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("%w: %w (%w)", errNoAnswer, ErrDisconnected, err)
	case err != nil:
		return fmt.Errorf("%w (%w)", ErrDisconnected, err)
	}
	if _, err := ovsdb.CheckOperationResults(results, operations); err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}

// merge is the operations of requests, with one for the ports of the bridge. Rows go with the last reference to them.
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
	var mutations []model.Mutation
	for mutator, ports := range map[ovsdb.Mutator][]string{
		ovsdb.MutateOperationDelete: slices.Compact(removed), ovsdb.MutateOperationInsert: added,
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
