// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/providerbridge"
	"github.com/kiln-net/kiln/internal/uplink"
)

// release restores the interface of a bridge and deletes the bridge.
func (p *providers) release(ctx context.Context, db *client.Client, provider, cause string) error {
	bridge := providerbridge.Bridge(provider)
	if err := p.directory.Step.Before("report removal"); err != nil {
		return err
	}
	if err := report(ctx, db, provider, providerbridge.Result{State: providerbridge.StateRemoving}); err != nil {
		return err
	}
	j, err := p.directory.Return(ctx, bridge, cause)
	if err != nil {
		return err
	}
	if err := p.directory.Step.Before("unmap " + bridge); err != nil {
		return err
	}
	if err := mapBridge(ctx, db, provider, false); err != nil {
		return err
	}
	if j != nil {
		if err := p.directory.Step.Before("detach " + j.Uplink + " in the database"); err != nil {
			return err
		}
		if err := detachPort(ctx, db, bridge, j.Uplink); err != nil {
			return err
		}
	}
	if err := p.directory.PutBack(ctx, bridge, cause); err != nil {
		return err
	}
	delete(p.raised, bridge)
	delete(p.refused, provider)
	if err := p.directory.Step.Before("delete bridge " + bridge); err != nil {
		return err
	}
	created := deleteCreated(func(of, _ string) bool { return of != bridge })
	if err := errors.Join(stopSharing(ctx, db, provider), deleteBridge(ctx, db, bridge), created); err != nil {
		return err
	}
	return p.directory.Remove(bridge)
}

// leave restores the interfaces in the userspace datapath after ovs-vswitchd has ended, which leaves bridges without carrier. When Kiln is removed or its
// pod is replaced, no guard may be left. They move again after the next start.
func (p *providers) leave(ctx context.Context) error {
	if p.kernel() {
		return nil
	}
	bridges, err := p.directory.List()
	errs := []error{err}
	for _, bridge := range bridges {
		errs = append(errs, p.directory.Leave(ctx, bridge, "kiln ovs ended"))
	}
	return errors.Join(errs...)
}

// forgetTurns removes the permission to move from stored requests. While the node was down, another one can have got it. The agent adds it again.
func forgetTurns(ctx context.Context, db *client.Client) error {
	row, err := root(ctx, db)
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
	return setIDs(ctx, db, remove, insert)
}

// beforeSwitchStarts removes interfaces from bridges in the database whose move was not completed, or was before a reboot, before ovs-vswitchd
// takes their packets again. They move again from the state that they have now. An interface that cannot be restored now does not keep ovs-vswitchd from starting: guards
// repeat it.
func (p *providers) beforeSwitchStarts(ctx context.Context, db *client.Client) error {
	have, err := ownBridges(ctx, db)
	if err != nil {
		return err
	}
	var errs []error
	for bridge := range have {
		j, err := p.directory.Read(bridge)
		if err == nil && (j == nil || j.Phase != uplink.PhaseMoved) {
			errs = append(errs, detachPort(ctx, db, bridge, ""))
		}
		if err == nil && j != nil && j.Phase != uplink.PhaseMoved {
			err = p.directory.PutBack(ctx, bridge, "the move was interrupted")
		}
		if err != nil {
			p.options.Log.Error(err, "the interface of a bridge may not have its addresses", "bridge", bridge)
		}
	}
	return errors.Join(errs...)
}

// releaseAll restores the interfaces of all bridges of provider networks.
func (p *providers) releaseAll(ctx context.Context, db *client.Client) error {
	have, err := ownBridges(ctx, db)
	if err != nil {
		return err
	}
	journals, err := p.directory.List()
	if err != nil {
		return err
	}
	var errs []error
	for bridge := range merged(have, named(journals)) {
		errs = append(errs, p.release(ctx, db, providerbridge.Provider(bridge), "Kiln is removed from the node"))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return deleteCreated(func(string, string) bool { return false }) // also of networks that never got a bridge
}
