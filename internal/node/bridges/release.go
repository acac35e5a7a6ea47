// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"errors"

	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
)

// release restores the interface of a bridge and deletes the bridge.
func (m *Mover) release(ctx context.Context, n network, cause string) error {
	step := m.directory.Step
	if err := step.Before("report removal"); err != nil {
		return err
	}
	if err := report(ctx, n.db, n.provider, providerbridge.Result{State: providerbridge.StateRemoving}); err != nil {
		return err
	}
	j, err := m.directory.Return(ctx, n.bridge, cause)
	if err != nil {
		return err
	}
	if err := step.Before("unmap " + n.bridge); err != nil {
		return err
	}
	if err := database.Map(ctx, n.db, n.provider, false); err != nil {
		return err
	}
	if j != nil {
		if err := step.Before("detach " + j.Uplink + " in the database"); err != nil {
			return err
		}
		if err := database.Detach(ctx, n.db, n.bridge, j.Uplink); err != nil {
			return err
		}
	}
	if err := m.directory.PutBack(ctx, n.bridge, cause); err != nil {
		return err
	}
	delete(m.raised, n.bridge)
	delete(m.refused, n.provider)
	if err := step.Before("delete bridge " + n.bridge); err != nil {
		return err
	}
	created := deleteCreated(func(of, _ string) bool { return of != n.bridge })
	if err := errors.Join(stopSharing(ctx, n.db, n.provider), database.Delete(ctx, n.db, n.bridge), created); err != nil {
		return err
	}
	return m.directory.Remove(n.bridge)
}

// Leave restores the interfaces in the userspace datapath after ovs-vswitchd has ended, which leaves bridges without carrier. When Kiln is removed or its
// pod is replaced, no guard may be left. They move again after the next start.
func (m *Mover) Leave(ctx context.Context) error {
	if m.options.kernel() {
		return nil
	}
	bridges, err := m.directory.List()
	errs := []error{err}
	for _, bridge := range bridges {
		errs = append(errs, m.directory.Leave(ctx, bridge, "kiln ovs ended"))
	}
	return errors.Join(errs...)
}

// forgetTurns removes the permission to move from stored requests. While the node was down, another one can have got it. The agent adds it again.
func forgetTurns(ctx context.Context, db *client.Client) error {
	row, err := database.Root(ctx, db)
	if err != nil {
		return err
	}
	requests, _ := providerbridge.Requests(row.ExternalIDs)
	var remove []string
	insert := map[string]string{}
	for provider, q := range requests {
		if q.Turn {
			q.Turn = false
			key := providerbridge.RequestKey(provider)
			remove, insert[key] = append(remove, key), q.Format()
		}
	}
	if len(remove) == 0 {
		return nil
	}
	return database.SetIDs(ctx, db, remove, insert)
}

// restoreUnfinished removes interfaces from bridges in the database whose move was not completed, or was before a reboot, before ovs-vswitchd
// takes their packets again. They move again from the state that they have now. An interface that cannot be restored now does not keep ovs-vswitchd from starting: guards
// repeat it.
func (m *Mover) restoreUnfinished(ctx context.Context, db *client.Client) error {
	have, err := database.Own(ctx, db)
	if err != nil {
		return err
	}
	var errs []error
	for bridge := range have {
		j, err := m.directory.Read(bridge)
		if err == nil && (j == nil || j.Phase != journal.PhaseMoved) {
			errs = append(errs, database.Detach(ctx, db, bridge, ""))
		}
		if err == nil && j != nil && j.Phase != journal.PhaseMoved {
			err = m.directory.PutBack(ctx, bridge, "the move was interrupted")
		}
		if err != nil {
			m.options.Log.Error(err, "the interface of a bridge may not have its addresses", "bridge", bridge)
		}
	}
	return errors.Join(errs...)
}

// Release restores the interfaces of all bridges of provider networks and deletes these bridges.
func (m *Mover) Release(ctx context.Context, db *client.Client) error {
	present, err := m.present(ctx, db)
	if err != nil {
		return err
	}
	var errs []error
	for _, bridge := range present {
		errs = append(errs, m.release(ctx, network{provider: providerbridge.Provider(bridge), bridge: bridge, db: db}, "Kiln is removed from the node"))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return deleteCreated(func(string, string) bool { return false }) // also of networks that never got a bridge
}
