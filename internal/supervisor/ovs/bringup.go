// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"os"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/supervisor"
)

// restoreWait in other_config makes ovs-vswitchd start with the flows that the kernel's datapath still has. While it is set,
// ovs-vswitchd handles no packet that these flows do not match (ovs-vswitchd.conf.db(5), Open_vSwitch).
const restoreWait = "flow-restore-wait"

// removeSockets removes stale sockets of killed processes, so that an existing socket always has a listener.
func removeSockets(o Options) error {
	return removeIfThere(o.socket(), o.management())
}

// prepareSwitch returns once ovs-vswitchd may start. It reports whether the integration bridge exists, and whether flows are
// saved for it.
func (n *node) prepareSwitch(ctx context.Context, db *client.Client) (bridge, saved bool) {
	supervisor.Retry(ctx, n.bringUpFailed, func() (err error) {
		if bridge, err = hasBridge(ctx, db); err != nil {
			return err
		}
		if saved, err = exists(n.options.flows()); err != nil {
			return err
		}
		saved = saved && bridge
		return setRestoreWait(ctx, db, saved)
	})
	return bridge, saved
}

func (n *node) bringUpFailed(err error) { n.options.Log.Error(err, "bringing the switch up again") }

// bringUp restores the saved flows in the starting ovs-vswitchd. Then it lets ovn-controller start, which replaces all flows in
// one step.
func (n *node) bringUp(ctx context.Context, db *client.Client, bridge, saved bool) {
	if bridge {
		awaitSocket(ctx, n.options.management(), n.bringUpFailed)
	}
	if saved {
		if err := restoreFlows(ctx, n.options); err != nil && ctx.Err() == nil {
			n.options.Log.Error(err, "flows are not restored: packets wait for ovn-controller")
		}
		supervisor.Retry(ctx, n.bringUpFailed, func() error { return setRestoreWait(ctx, db, false) })
	}
	if ctx.Err() != nil {
		return
	}
	// The saved flows are for this start only. At a later start they would be older than ovn-controller's changes.
	if err := os.RemoveAll(n.options.flows()); err != nil {
		n.options.Log.Error(err, "removing saved flows")
	}
	n.switched()
}

// beforeSwitchStops saves flows. If that fails, packets wait for ovn-controller at the next start.
func (n *node) beforeSwitchStops(ctx context.Context) {
	if err := saveFlows(ctx, n.options); err != nil {
		n.options.Log.Error(err, "flows are not saved")
	}
}

func hasBridge(ctx context.Context, db *client.Client) (bool, error) {
	var found []vswitch.Bridge
	if err := db.Where(&vswitch.Bridge{Name: integrationBridge}).List(ctx, &found); err != nil {
		return false, fmt.Errorf("look for bridge %s: %w", integrationBridge, err)
	}
	return len(found) > 0, nil
}

func setRestoreWait(ctx context.Context, db *client.Client, wait bool) error {
	row, err := root(ctx, db)
	if err != nil {
		return err
	}
	if _, waits := row.OtherConfig[restoreWait]; waits == wait {
		return nil
	}
	mutation := model.Mutation{Field: &row.OtherConfig, Mutator: ovsdb.MutateOperationDelete, Value: []string{restoreWait}}
	if wait {
		mutation.Mutator, mutation.Value = ovsdb.MutateOperationInsert, map[string]string{restoreWait: "true"}
	}
	operations, err := db.Where(row).Mutate(row, mutation)
	if err != nil {
		return fmt.Errorf("set %s: %w", restoreWait, err)
	}
	if _, err := transact(ctx, db, operations); err != nil {
		return fmt.Errorf("set %s: %w", restoreWait, err)
	}
	return nil
}
