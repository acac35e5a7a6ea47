// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"errors"
	"time"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
)

// Return records that a move must be undone, for which PutBack or a guard is responsible then. It returns the journal; nil if there is none.
func (d Directory) Return(ctx context.Context, bridge, cause string) (j *Journal, err error) {
	err = d.locked(ctx, func() error {
		if j, err = d.Read(bridge); err != nil || j == nil {
			return err
		}
		if err := d.markReturned(j, cause); err != nil && !errors.Is(err, errNotWritten) { // like in putBackIf
			return err
		}
		return nil
	})
	return j, err
}

func (d Directory) markReturned(j *Journal, cause string) error {
	if j.Phase == PhaseReturned {
		return nil
	}
	if j.Failures++; j.Phase == PhaseMoved && kernel.SinceBoot()-j.Since > settled {
		j.Failures = 0
	}
	j.Phase, j.Since, j.Cause, j.Undone = PhaseReturned, kernel.SinceBoot(), cause, time.Now().UTC().Truncate(time.Second)
	return d.write(j)
}

// PutBack restores the interface of a bridge: addresses, routes, neighbours and MTU. It needs neither Open vSwitch nor its database. It removes the port
// from the bridge in the database, if that is reached.
func (d Directory) PutBack(ctx context.Context, bridge, cause string) error {
	return d.putBackIf(ctx, bridge, func(j *Journal) (string, bool) { return cause, !j.Done })
}

// Leave is PutBack of what a node can need, for an end that is no failure of the move, so that no pause follows.
func (d Directory) Leave(ctx context.Context, bridge, cause string) error {
	return d.putBackIf(ctx, bridge, func(j *Journal) (string, bool) {
		if j.Phase == PhaseMoved {
			j.Failures = -1
		}
		return cause, !j.Done && j.Before.Carries() != ""
	})
}

// putBackIf restores the interface if, while no other process changes it, the condition is true.
func (d Directory) putBackIf(ctx context.Context, bridge string, is func(*Journal) (cause string, is bool)) error {
	return d.locked(ctx, func() error {
		j, err := d.Read(bridge)
		if err != nil || j == nil {
			return err
		}
		cause, is := is(j)
		if !is {
			return nil
		}
		// Without space for the journal, the interface is restored all the same, and again until the journal is written.
		if err := d.markReturned(j, cause); err != nil && !errors.Is(err, errNotWritten) {
			return err
		}
		if j.Done { // attached again
			return d.free(ctx, j, d.checked(j))
		}
		if err := d.restore(ctx, j); err != nil {
			return err
		}
		j.Done = true
		return d.write(j)
	})
}

// restore gives everything back, even if the interface cannot be freed: then it is not complete, and tried again.
func (d Directory) restore(ctx context.Context, j *Journal) error {
	step := d.checked(j)
	freed := d.free(ctx, j, step)
	link, err := kernel.Link(j.Uplink)
	if err != nil || link == nil { // without the interface there is nothing to give the addresses back to
		return errors.Join(freed, err)
	}
	bridge, err := kernel.Link(j.Bridge)
	if err != nil {
		return errors.Join(freed, err)
	}
	refused, err := kernel.GiveBack(j.Before, link, bridge, step)
	if refused != nil {
		d.Log.Error(refused, "addresses or routes could not be restored", "interface", j.Uplink)
		j.Cause += ". The kernel refused to restore: " + refused.Error()
	}
	return errors.Join(freed, err)
}

// free makes the node's own stack receive the packets that arrive at the interface.
func (d Directory) free(ctx context.Context, j *Journal, step kernel.Step) error {
	switch taken, err := d.taken(j); {
	case err != nil:
		return err
	case taken:
		return errNotOurs
	}
	if err := step.Before("remove port " + j.Uplink); err != nil {
		return err
	}
	found, removed := d.removePort(ctx, j)
	if !j.Kernel {
		if err := step.Before("drop the shield of " + j.Bridge); err != nil {
			return err
		}
		return kernel.ShieldOf(j.Bridge).Drop(ctx)
	}
	switch {
	case removed != nil:
		d.stopSwitch(ctx)
	case j.Done && !found:
		return errNotOurs
	}
	if err := step.Before("detach " + j.Uplink); err != nil {
		return err
	}
	return kernel.Detach(j.Uplink)
}

// taken reports whether another provider network has taken the interface since it was restored.
func (d Directory) taken(j *Journal) (bool, error) {
	if !j.Done {
		return false, nil
	}
	bridges, err := d.List()
	if err != nil {
		return false, err
	}
	for _, bridge := range bridges {
		other, err := d.Read(bridge)
		if err == nil && other != nil && other.Bridge != j.Bridge && other.Uplink == j.Uplink && !other.Done {
			return true, nil
		}
	}
	return false, nil
}
