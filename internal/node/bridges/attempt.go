// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
)

// Times between attempts. Tests shorten them.
var (
	// unreachableRetry is the pause before a move whose gateways and nodes did not answer, or whose interface is named by rules, is tried again.
	unreachableRetry = 30 * time.Second
	// firstPause is from a move that was undone to the next attempt; each further one is pauseFactor times as long, up to lastPause.
	firstPause, lastPause = time.Minute, 6 * time.Hour
)

const pauseFactor = 4

// candidate is an interface that may move, with the journal of its move.
type candidate struct {
	network
	link    netlink.Link
	journal journal.Journal
}

// needed names what the node loses if the move fails; empty if nothing can be lost.
func (c *candidate) needed() string { return c.journal.Before.Needed() }

// refusal is the result of an attempt that changed nothing.
type refusal struct {
	attempt string
	turn    bool
	at      time.Time
	result  providerbridge.Result
}

// counts reports whether the result still holds for the candidate.
func (r refusal) counts(c *candidate) bool {
	return r.attempt == c.journal.Attempt && r.turn == c.request.Turn && time.Since(r.at) < unreachableRetry
}

// attempt checks the interface of a request, and begins its move.
func (m *Mover) attempt(ctx context.Context, n network, last *journal.Journal) providerbridge.Result {
	// The port goes before anything else, because ovs-vswitchd attaches the interface again as long as it is there.
	if err := database.Detach(ctx, n.db, n.bridge, n.request.Interface); err != nil {
		return failure(err)
	}
	if err := deleteCreated(func(of, name string) bool { return of != n.bridge || name == n.request.Interface }); err != nil { // of a former specification
		return failure(err)
	}
	link, unsuitable := m.suitable(*n.request)
	if unsuitable.State != "" {
		return unsuitable
	}
	state, err := kernel.Read(link)
	if err != nil {
		return failure(err)
	}
	c := &candidate{network: n, link: link, journal: journal.Journal{
		Bridge: n.bridge, Uplink: n.request.Interface, Kernel: m.options.kernel(), Attempt: attemptOf(*n.request, link), Before: state, Phase: journal.PhaseMoved,
	}}
	if last != nil && last.Attempt == c.journal.Attempt {
		c.journal.Failures, c.journal.Undone, c.journal.Cause = last.Failures, last.Undone, last.Cause
	}
	if left := pause(&c.journal); left > 0 && c.needed() != "" { // otherwise nothing can be lost
		m.wake(left)
		return undone(&c.journal)
	}
	if old := m.refused[n.provider]; old.counts(c) {
		m.wake(unreachableRetry - time.Since(old.at))
		return old.result
	}
	result := m.begin(ctx, c)
	delete(m.refused, n.provider)
	if slices.Contains([]providerbridge.Reason{providerbridge.ReasonUnreachable, providerbridge.ReasonAwaitingTurn, providerbridge.ReasonNamed}, result.Reason) {
		m.refused[n.provider] = refusal{attempt: c.journal.Attempt, turn: n.request.Turn, at: time.Now(), result: result}
		m.wake(unreachableRetry)
	}
	return result
}

// attemptOf identifies an attempt: a request, and the interface that it names. Addresses and routes of the interface do not belong to it, because programs
// change them at any time.
func attemptOf(q providerbridge.Request, link netlink.Link) string {
	return strings.Join([]string{q.Attempt, q.Interface, string(q.NodeInterface), strconv.Itoa(link.Attrs().Index)}, " ")
}

// begin moves the interface if no check refuses it. The checks that send packets or read the rules of a whole node are the last ones.
func (m *Mover) begin(ctx context.Context, c *candidate) providerbridge.Result {
	checks := []func(context.Context, *candidate) providerbridge.Result{valid, m.managed, consented, connected, m.unnamed, m.bridged}
	if c.needed() != "" {
		checks = append(checks, m.reachable, m.renewable, itsTurn)
	}
	for _, check := range checks {
		if result := check(ctx, c); result.State != "" {
			return result
		}
	}
	return m.move(ctx, c)
}

// pause returns the time until the next attempt of a move that was undone. It grows with each failure, because each trial that fails can cost the node
// its network until the deadline.
func pause(j *journal.Journal) time.Duration {
	return min(time.Until(j.Undone.Add(pauseAfter(j.Failures))), pauseAfter(j.Failures))
}

func pauseAfter(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	after := firstPause
	for range failures - 1 {
		if after *= pauseFactor; after >= lastPause {
			return lastPause
		}
	}
	return after
}

// undone is the result of a move that was undone.
func undone(j *journal.Journal) providerbridge.Result {
	return failed(providerbridge.ReasonRolledBack, "%s has its addresses back: %s. Attempt %d begins at %s, or when the specification changes",
		j.Uplink, j.Cause, j.Failures+1, j.Undone.Add(pauseAfter(j.Failures)).Format(time.RFC3339))
}
