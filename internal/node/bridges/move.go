// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/bridges/targets"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/supervisor"
)

// Times of a move. Tests shorten them.
var (
	// trialTime is from the beginning of a move to its deadline.
	trialTime = 30 * time.Second
	// answerTime is for targets to answer before a move.
	answerTime = 2 * time.Second
	// attachTime is for ovs-vswitchd to create or attach an interface.
	attachTime = 10 * time.Second
	// verifyMargin is from the end of the verification to the deadline, so that the cause is this process's, which knows it.
	verifyMargin = time.Second
)

// move moves the interface to the bridge, on trial if the node needs it.
func (m *Mover) move(ctx context.Context, c *candidate) providerbridge.Result {
	j := &c.journal
	if c.needed() != "" {
		moving := providerbridge.Result{State: providerbridge.StateMoving, Interface: c.request.Interface, Attempt: c.request.Attempt}
		if err := report(ctx, c.db, c.provider, moving); err != nil {
			return failure(err)
		}
		j.Phase, j.Deadline = journal.PhaseTrial, journal.Deadline(trialTime)
	}
	if err := m.directory.Begin(ctx, *j); err != nil {
		return failure(err)
	}
	delete(m.raised, c.bridge)
	m.moves.begun.Add(1)
	err := m.try(ctx, c)
	if err == nil && j.Phase == journal.PhaseTrial {
		err = m.directory.Commit(ctx, c.bridge)
	}
	switch {
	case ctx.Err() != nil: // the next process, or a guard, undoes it
		return failure(ctx.Err())
	case err != nil:
		return m.undo(ctx, c.network, *j, err)
	}
	m.moves.completed.Add(1)
	m.options.Log.Info("an interface moved to the bridge of a provider network", "bridge", c.bridge, "interface", j.Uplink, "answered", targets.Names(j.Targets))
	return m.keep(ctx, c.network)
}

// try attaches the interface to the bridge and moves its state, and returns nil once all targets answer by the bridge.
func (m *Mover) try(ctx context.Context, c *candidate) error {
	j := c.journal
	if j.Phase == journal.PhaseTrial {
		limited, cancel := context.WithTimeout(ctx, j.Left()-verifyMargin)
		defer cancel()
		ctx = limited
	}
	err := m.directory.While(ctx, j.Bridge, "attach "+j.Uplink, func() error { return m.write(ctx, c.network, c.link, true) })
	if err == nil {
		err = m.directory.Step.Before("wait for " + j.Uplink)
	}
	if err == nil {
		err = database.Await(ctx, c.db, j.Uplink, attachTime)
	}
	if err != nil {
		return err
	}
	if _, err := m.directory.Move(ctx, j.Bridge); err != nil {
		return err
	}
	if err := m.shield(ctx, j.Bridge, c.link); err != nil {
		return err
	}
	if len(j.Targets) == 0 {
		return nil
	}
	bridge, err := netlink.LinkByName(j.Bridge)
	if err != nil {
		return fmt.Errorf("look for interface %s: %w", j.Bridge, err)
	}
	if err := m.directory.Step.Before("verify"); err != nil {
		return err
	}
	answered := targets.Answering(ctx, bridge, j.Targets)
	if silent := slices.DeleteFunc(slices.Clone(j.Targets), func(t targets.Target) bool { return slices.Contains(answered, t) }); len(silent) > 0 {
		return fmt.Errorf("after the move, %s did not answer for %s", targets.Names(silent), trialTime)
	}
	return nil
}

// awaitLink returns once the kernel has the interface of a bridge. The database can have a port number of the time before a reboot.
func awaitLink(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	for {
		if link, err := kernel.Link(name); link != nil || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("ovs-vswitchd has not made the interface %s for %s", name, attachTime)
		}
		supervisor.Pause(ctx, 20*time.Millisecond)
	}
}

// undo puts everything back after a move that failed.
func (m *Mover) undo(ctx context.Context, n network, j journal.Journal, cause error) providerbridge.Result {
	m.moves.undone.Add(1)
	m.options.Log.Error(cause, "putting an interface back", "bridge", j.Bridge, "interface", j.Uplink)
	if err := errors.Join(m.directory.PutBack(ctx, j.Bridge, cause.Error()), database.Detach(ctx, n.db, j.Bridge, j.Uplink)); err != nil {
		return failure(err)
	}
	delete(m.raised, j.Bridge)
	if j.Before.Needed() == "" { // nothing was lost
		return failure(cause)
	}
	back, err := m.directory.Read(j.Bridge)
	if err != nil || back == nil {
		return failure(errors.Join(cause, err))
	}
	m.wake(pause(back))
	return undone(back)
}

// interrupted is the result of a step that failed. If a guard has undone the move before, it is what the guard says.
func (m *Mover) interrupted(bridge string, cause error) providerbridge.Result {
	if !errors.Is(cause, journal.ErrReturned) {
		return failure(cause)
	}
	j, err := m.directory.Read(bridge)
	if err != nil || j == nil || j.Before.Needed() == "" {
		return failure(errors.Join(cause, err))
	}
	m.wake(retryDelay) // the port has to go
	return undone(j)
}

// putBack ends a move of a process that ended, or a restoration that was interrupted.
func (m *Mover) putBack(ctx context.Context, n network) error {
	// The port goes before anything else, because ovs-vswitchd attaches the interface again as long as it is there.
	if err := database.Detach(ctx, n.db, n.bridge, n.request.Interface); err != nil {
		return err
	}
	return m.directory.PutBack(ctx, n.bridge, "the move was interrupted")
}
