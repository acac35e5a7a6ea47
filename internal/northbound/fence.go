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
	// keyTerm counts leaders. Every transaction waits for its own term to stand there.
	keyTerm = "kiln-leader-term"
	// keyBarrier changes when an outcome is unknown: every transaction waits for the value that its sender sees, so that nothing sent before
	// the change can be committed after it.
	keyBarrier = "kiln-barrier"
)

// globalOptions are set in NB_Global's options where they are not there (ovn-nb(5)); docs/decisions says why. What someone else has
// set stays, and so do all others: ovn-northd keeps its own there.
var globalOptions = map[any]any{
	// ovn-northd rests after each computation for as long as that took, but no longer than this.
	"northd-backoff-interval-ms": "300",
}

// term is the leadership of this process.
type term struct {
	number   string // empty: this process does not lead
	barriers int
	over     chan struct{} // closed when the term ends
}

// Lead takes the next term, sets the database's options that have defaults of ours, and makes the engine write. Whoever led before
// is refused from then on. It returns when the term is taken, or when ctx ends.
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
		// The replica has what the other one wrote, since a reply follows all that was committed before it.
	}
}

// raced says whether a transaction failed because another one came first: its wait failed, or NB_Global exists already.
func raced(results []ovsdbclient.Result) bool {
	for _, result := range results {
		if result.Error == "timed out" || result.Error == "constraint violation" {
			return true
		}
	}
	return false
}

// nextTerm returns the operations that take the term after the one in the replica, and its number. NB_Global's one row is made by
// whoever comes first: northd, ovn-nbctl or Kiln.
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
		last = 0 // none, or not one of ours
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

// defaultOptions sets those of globalOptions that are not there: an insert leaves a key that a map has (RFC 7047, section 5.1).
func defaultOptions(uuid string) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: nb.NBGlobalTable, Where: byUUID(uuid),
		Mutations: []ovsdb.Mutation{
			{Column: "options", Mutator: ovsdb.MutateOperationInsert, Value: ovsdb.OvsMap{GoMap: globalOptions}},
		},
	}
}

// setGlobal sets one of NB_Global's external_ids and leaves the others, which may be anyone's.
func setGlobal(uuid, key, value string) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: nb.NBGlobalTable, Where: byUUID(uuid),
		Mutations: []ovsdb.Mutation{
			{Column: "external_ids", Mutator: ovsdb.MutateOperationDelete, Value: ovsdb.OvsSet{GoSet: []any{key}}},
			{Column: "external_ids", Mutator: ovsdb.MutateOperationInsert, Value: ovsdb.OvsMap{GoMap: map[any]any{key: value}}},
		},
	}
}

// global returns NB_Global's row.
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

// fence returns the operation that begins each transaction: it fails unless this process's term, and the barrier that the replica has, stand
// in NB_Global.
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

// leads returns the number of this process's term, or "".
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

// fenced handles a failed fence. The replica has every update that precedes the reply. With another term in these updates, this process's
// term ends. Otherwise they include a barrier of this process whose reply was lost, and a new fence passes.
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

// Acknowledged returns when the database last committed a transaction of this term, and the zero time while this process does not lead. An engine
// that can write has it renewed at least every CanaryInterval.
func (e *Engine) Acknowledged() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term.number == "" {
		return time.Time{}
	}
	return e.acknowledged
}

// acknowledge notes that the database has committed a transaction.
func (e *Engine) acknowledge() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.acknowledged = time.Now()
	lastCommit.SetToCurrentTime()
}

// canary writes a barrier when nothing was committed for CanaryInterval: it shows that the database can be written. ovn-northd does not compute
// anything in full for it.
func (e *Engine) canary(ctx context.Context) {
	if last := e.Acknowledged(); !last.IsZero() && time.Since(last) >= e.canaryInterval {
		if err := e.barrier(ctx); err != nil {
			e.log.V(1).Info("Cannot write a barrier", "reason", err.Error())
		}
	}
}

// barrier brings the replica up to date with a transaction whose reply was lost: once a write after reconnection is committed, the lost
// transaction is either in the replica or can never be committed.
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

// follow keeps track of NB_Global: another leader's term ends ours before the next transaction tells.
func (e *Engine) follow(global *nb.NBGlobal) {
	if number := e.leads(); number != "" && global.ExternalIDs[keyTerm] != number {
		e.depose(number)
	}
}
