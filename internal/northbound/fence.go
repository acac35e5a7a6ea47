// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Keys in NB_Global's external_ids.
const (
	// keyTerm is the number of the current leader's term. A transaction fails unless it equals the sender's term.
	keyTerm = "kiln-leader-term"
	// keyBarrier changes when the outcome of a transaction is unknown. A transaction fails unless it equals the value in the
	// sender's replica. Therefore no transaction sent before a change can be committed after it.
	keyBarrier = "kiln-barrier"
)

// globalOptions are NB_Global options (ovn-nb(5)) that Lead sets if they are missing; docs/decisions has the reasons. Values
// that another client has set stay, and so do all other options: ovn-northd stores its own there.
var globalOptions = map[any]any{
	// After each computation ovn-northd pauses for as long as the computation took, but at most for this many milliseconds.
	"northd-backoff-interval-ms": "300",
}

// term is the leadership of this process.
type term struct {
	number   string // empty: this process does not lead
	barriers int
	over     chan struct{} // closed when the term ends
}

// Lead takes the next term, sets missing globalOptions, and enables writes. From then on the database refuses transactions of
// the previous leader. Lead retries lost connections and races, and returns when the term is taken or ctx ends.
func (e *Engine) Lead(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("take the lead: %w", err)
		}
		if err := e.session.WaitConnected(ctx); err != nil {
			return fmt.Errorf("take the lead: %w", err)
		}
		operations, number := e.nextTerm()
		results, err := e.send(ctx, "lead", operations)
		if errors.Is(err, ovsdbclient.ErrNotConnected) || errors.Is(err, ovsdbclient.ErrOutcomeUnknown) {
			continue
		}
		if err != nil {
			return fmt.Errorf("take the lead: %w", err)
		}
		refused := failed(operations, results)
		if refused == nil {
			e.index.holdings.forgetAll()
			e.queue.drop() // of a former term
			e.mu.Lock()
			e.term = term{number: number, over: make(chan struct{})}
			e.acknowledged = time.Now()
			e.mu.Unlock()
			e.log.Info("Leads", "term", number)
			return nil
		}
		if !raced(results) {
			return fmt.Errorf("take the lead: %w", refused.err)
		}
		// The replica now holds the competing write, since a reply follows all earlier commits.
	}
}

// raced reports whether a transaction failed because another client's was committed first: its wait failed, or NB_Global
// already exists.
func raced(results []ovsdbclient.Result) bool {
	for _, result := range results {
		if result.Error == "timed out" || result.Error == "constraint violation" {
			return true
		}
	}
	return false
}

// nextTerm returns the operations that take the term after the one in the replica, and its number. If NB_Global has no row yet,
// they insert it: the first client to connect does that, which may be northd, ovn-nbctl or Kiln.
func (e *Engine) nextTerm() ([]ovsdb.Operation, string) {
	uuid, global := e.global()
	if global == nil {
		ids := ovsdb.OvsMap{GoMap: map[any]any{keyTerm: "1", keyBarrier: "1.0"}}
		return []ovsdb.Operation{{Op: ovsdb.OperationInsert, Table: nb.NBGlobalTable, Row: ovsdb.Row{
			"external_ids": ids, "options": ovsdb.OvsMap{GoMap: globalOptions},
		}}}, "1"
	}
	last, err := strconv.ParseUint(global.ExternalIDs[keyTerm], 10, 63)
	if err != nil {
		last = 0 // no term, or not one that Kiln wrote
	}
	number := strconv.FormatUint(last+1, 10)
	known := ovsdb.OvsMap{GoMap: map[any]any{}}
	for key, value := range global.ExternalIDs {
		known.GoMap[key] = value
	}
	now := 0
	unchanged := ovsdb.Operation{
		Op: ovsdb.OperationWait, Table: nb.NBGlobalTable, Timeout: &now, Where: byUUID(uuid),
		Columns: []string{"external_ids"}, Until: string(ovsdb.WaitConditionEqual), Rows: []ovsdb.Row{{"external_ids": known}},
	}
	return []ovsdb.Operation{
		unchanged, setGlobal(uuid, keyTerm, number), setGlobal(uuid, keyBarrier, number+".0"), defaultOptions(uuid),
	}, number
}

// defaultOptions sets the missing globalOptions: an insert mutation does not overwrite keys of a map (RFC 7047, section 5.1).
func defaultOptions(uuid string) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: nb.NBGlobalTable, Where: byUUID(uuid),
		Mutations: []ovsdb.Mutation{
			{Column: "options", Mutator: ovsdb.MutateOperationInsert, Value: ovsdb.OvsMap{GoMap: globalOptions}},
		},
	}
}

// setGlobal sets one of NB_Global's external_ids and leaves the others, which may belong to other programs.
func setGlobal(uuid, key, value string) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: nb.NBGlobalTable, Where: byUUID(uuid),
		Mutations: []ovsdb.Mutation{
			{Column: "external_ids", Mutator: ovsdb.MutateOperationDelete, Value: ovsdb.OvsSet{GoSet: []any{key}}},
			{Column: "external_ids", Mutator: ovsdb.MutateOperationInsert, Value: ovsdb.OvsMap{GoMap: map[any]any{key: value}}},
		},
	}
}

// global returns NB_Global's UUID and a copy of its row, or nil if there is none.
func (e *Engine) global() (string, *nb.NBGlobal) {
	var uuid string
	var global *nb.NBGlobal
	e.session.Read(func(r *ovsdbclient.Replica) { uuid, global = globalOf(r) })
	return uuid, global
}

func globalOf(r *ovsdbclient.Replica) (string, *nb.NBGlobal) {
	for uuid, row := range r.Rows(nb.NBGlobalTable) {
		if global, ok := row.(*nb.NBGlobal); ok {
			return uuid, global.DeepCopy()
		}
	}
	return "", nil
}

// fence returns the first operation of each transaction: it fails unless NB_Global holds this process's term and the replica's
// barrier.
func (e *Engine) fence() (ovsdb.Operation, error) {
	number := e.leads()
	uuid, global := e.global()
	if number == "" || global == nil {
		return ovsdb.Operation{}, ErrDeposed
	}
	now := 0
	ours := ovsdb.OvsMap{GoMap: map[any]any{keyTerm: number}}
	if barrier, ok := global.ExternalIDs[keyBarrier]; ok {
		ours.GoMap[keyBarrier] = barrier
	}
	return ovsdb.Operation{
		Op: ovsdb.OperationWait, Table: nb.NBGlobalTable, Timeout: &now,
		Where:   append(byUUID(uuid), ovsdb.NewCondition("external_ids", ovsdb.ConditionIncludes, ours)),
		Columns: []string{"_uuid"}, Until: string(ovsdb.WaitConditionEqual),
		Rows: []ovsdb.Row{{"_uuid": ovsdb.UUID{GoUUID: uuid}}},
	}, nil
}

// leads returns the number of this process's term, or "" while it does not lead.
func (e *Engine) leads() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term.number
}

// depose ends this process's term.
func (e *Engine) depose(number string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term.number == number {
		close(e.term.over)
		e.term = term{}
		e.log.Info("Leads no more", "term", number)
	}
}

// fenced handles a failed fence. The replica has every update that precedes the reply. If these updates contain another term,
// this process's term ends. Otherwise they contain a barrier of this process whose reply was lost, and a new fence passes.
func (e *Engine) fenced(number string) error {
	if _, global := e.global(); global != nil && global.ExternalIDs[keyTerm] == number {
		return nil
	}
	e.depose(number)
	return ErrDeposed
}

// Over returns a channel that is closed when the term that Lead took ends. While this process does not lead, it is closed already.
func (e *Engine) Over() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term.over == nil {
		over := make(chan struct{})
		close(over)
		return over
	}
	return e.term.over
}

// Acknowledged returns the time of the last commit of this term, and the zero time while this process does not lead. If the
// database accepts writes, the time is at most one CanaryInterval old.
func (e *Engine) Acknowledged() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term.number == "" {
		return time.Time{}
	}
	return e.acknowledged
}

// acknowledge records the time of a commit.
func (e *Engine) acknowledge() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.acknowledged = time.Now()
	lastCommit.SetToCurrentTime()
}

// canary writes a barrier when nothing was committed for half of CanaryInterval, to check that the database accepts writes. A barrier
// does not cause a full recompute of ovn-northd.
func (e *Engine) canary(ctx context.Context) {
	if last := e.Acknowledged(); !last.IsZero() && time.Since(last) >= e.canaryInterval/2 {
		if err := e.barrier(ctx); err != nil {
			e.log.V(1).Info("Cannot write a barrier", "reason", err.Error())
		}
	}
}

// barrier brings the replica up to date after a transaction whose reply was lost. Once a write after the reconnection is
// committed, the lost transaction either is in the replica or can never be committed.
func (e *Engine) barrier(ctx context.Context) error {
	for {
		if err := e.session.WaitConnected(ctx); err != nil {
			return err
		}
		number := e.leads()
		fence, err := e.fence()
		if err != nil {
			return err
		}
		uuid, _ := e.global()
		operations := []ovsdb.Operation{fence, setGlobal(uuid, keyBarrier, e.nextBarrier())}
		results, err := e.send(ctx, "barrier", operations)
		if errors.Is(err, ovsdbclient.ErrNotConnected) || errors.Is(err, ovsdbclient.ErrOutcomeUnknown) {
			if ctx.Err() != nil {
				return fmt.Errorf("barrier: %w", ctx.Err())
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("barrier: %w", err)
		}
		switch refused := failed(operations, results); {
		case refused == nil:
			e.acknowledge()
			return nil
		case refused.operation > 0:
			return fmt.Errorf("barrier: %w", refused.err)
		}
		if err := e.fenced(number); err != nil {
			return err
		}
	}
}

// nextBarrier returns a value that keyBarrier has never had.
func (e *Engine) nextBarrier() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term.barriers++
	return e.term.number + "." + strconv.Itoa(e.term.barriers)
}

// follow processes a change of NB_Global. A term of another leader ends this process's term at once, before a transaction fails
// on the fence.
func (e *Engine) follow(global *nb.NBGlobal) {
	if number := e.leads(); number != "" && global.ExternalIDs[keyTerm] != number {
		e.depose(number)
	}
}
