// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/supervisor"
)

// restoreWait in other_config makes ovs-vswitchd start with the flows that the kernel's datapath still has. While it is set,
// ovs-vswitchd handles no packet that these flows do not match (ovs-vswitchd.conf.db(5), Open_vSwitch).
const restoreWait = "flow-restore-wait"

// removeSockets removes stale sockets of killed processes, so that an existing socket always has a listener.
func removeSockets(o Options) error {
	return removeIfThere(o.socket(), o.management())
}

// flowsTimeout bounds the wait for ovn-controller's flows after a crash: other bridges, such as those of the node's own uplinks, must not
// wait for ever if ovn-controller cannot reach its database.
const flowsTimeout = 30 * time.Second

// keepsFlows reports whether packets are forwarded while ovs-vswitchd does not run: the kernel has a copy of the flows in use.
var keepsFlows = func(d v1alpha1.Datapath) (bool, error) {
	if d != v1alpha1.DatapathKernel {
		return false, nil
	}
	link, err := kernel.Link(kernel.DatapathLink)
	return link != nil, err
}

// forgetInstalled removes ovn-installed from all interfaces in the stored database if the flows that it stands for are lost, as after a reboot.
// ovn-controller sets it again once it has installed its flows; until then the agent would take ovn0 for connected.
func forgetInstalled(ctx context.Context, o Options) error {
	saved, err := exists(o.flows())
	if err != nil {
		return err
	}
	kept, err := keepsFlows(o.Datapath)
	if err != nil || saved || kept {
		return err
	}
	_, err = tool(ctx, o, "transact", o.database(), `["Open_vSwitch",{"op":"mutate","table":"Interface","where":`+
		`[["external_ids","includes",["map",[["ovn-installed","true"]]]]],"mutations":[["external_ids","delete",["set",["ovn-installed"]]]]}]`)
	return err
}

// start is the state before a start of ovs-vswitchd.
type start struct {
	bridge bool // the integration bridge exists
	saved  bool // its flows were saved: ovs-vswitchd was stopped. Otherwise it was killed
	kept   bool // the kernel has the flows that were in use
}

// waits reports whether ovs-vswitchd waits for flows, instead of deleting those that the datapath has.
func (s start) waits() bool { return s.bridge && (s.saved || s.kept) }

// beforeSwitchStarts prepares a start of ovs-vswitchd, the first one or one after a crash, until ctx ends, and brings the switch up once it
// runs, until running ends. It returns ctx's error if ovs-vswitchd must not start.
func (n *node) beforeSwitchStarts(ctx, running context.Context) error {
	if n.endBringUp != nil {
		n.endBringUp()
	}
	db := n.db.Load()
	s := n.prepareSwitch(ctx, db)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	n.waiting.Store(s.waits())
	up, cancel := context.WithCancel(running)
	done := make(chan struct{})
	n.endBringUp = func() { cancel(); <-done }
	go func() {
		defer close(done)
		n.bringUp(up, db, s)
	}()
	return nil
}

// prepareSwitch returns once ovs-vswitchd may start, or ctx ends.
func (n *node) prepareSwitch(ctx context.Context, db *client.Client) (s start) {
	supervisor.Retry(ctx, n.bringUpFailed, func() (err error) {
		if s.bridge, err = hasBridge(ctx, db); err != nil {
			return err
		}
		if s.saved, err = exists(n.options.flows()); err != nil {
			return err
		}
		if s.kept, err = keepsFlows(n.options.Datapath); err != nil {
			return err
		}
		if err := removeIfThere(n.options.management()); err != nil { // of a killed process
			return err
		}
		return setRestoreWait(ctx, db, s.waits())
	})
	return s
}

func (n *node) bringUpFailed(err error) { n.options.Log.Error(err, "bringing the switch up again") }

// bringUp restores the saved flows in the starting ovs-vswitchd, and then lets ovn-controller start, which replaces all flows in one step.
// After a crash there are no saved flows: the kernel forwards by the flows that it has until ovn-controller has installed its own.
func (n *node) bringUp(ctx context.Context, db *client.Client, s start) {
	if s.bridge {
		awaitSocket(ctx, n.options.management(), n.bringUpFailed)
	}
	awaits := s.waits() && !n.restored(ctx, s) && s.kept
	endWait := func() {
		supervisor.Retry(ctx, n.bringUpFailed, func() error { return setRestoreWait(ctx, db, false) })
		n.waiting.Store(ctx.Err() != nil)
	}
	if s.waits() && !awaits {
		endWait()
	}
	if ctx.Err() != nil {
		return
	}
	// The saved flows are for this start only. At a later start they would be older than ovn-controller's changes.
	if err := os.RemoveAll(n.options.flows()); err != nil {
		n.options.Log.Error(err, "removing saved flows")
	}
	n.switched()
	if awaits {
		n.awaitFlows(ctx)
		endWait()
	}
}

// restored restores the saved flows, if there are any. If that fails, it leaves none of them.
func (n *node) restored(ctx context.Context, s start) bool {
	if !s.saved {
		return false
	}
	err := restoreFlows(ctx, n.options)
	if err == nil || ctx.Err() != nil {
		return err == nil
	}
	n.options.Log.Error(err, "flows are not restored: packets wait for ovn-controller")
	if _, err := openFlow(ctx, n.options, "del-flows"); err != nil {
		n.options.Log.Error(err, "the part of the flows that was restored stays")
	}
	return false
}

// awaitFlows returns once ovn-controller has installed its flows, which it does in one step, or after flowsTimeout.
func (n *node) awaitFlows(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flowsTimeout)
	defer cancel()
	for ctx.Err() == nil {
		aggregate, err := openFlow(ctx, n.options, "dump-aggregate")
		if err == nil && !bytes.Contains(aggregate, []byte("flow_count=0")) {
			return
		}
		supervisor.Pause(ctx, 20*time.Millisecond)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		n.options.Log.Info("ovn-controller has installed no flows yet; other bridges do not wait for it any longer", "after", flowsTimeout.String())
	}
}

// beforeSwitchStops saves flows. If that fails, packets wait for ovn-controller at the next start.
func (n *node) beforeSwitchStops(ctx context.Context) {
	if n.waiting.Load() {
		return // it has no flows, or not yet those that were saved before
	}
	if err := saveFlows(ctx, n.options); err != nil {
		n.options.Log.Error(err, "flows are not saved")
	}
}

func hasBridge(ctx context.Context, db *client.Client) (bool, error) {
	var found []vswitch.Bridge
	if err := db.Where(&vswitch.Bridge{Name: database.Integration}).List(ctx, &found); err != nil {
		return false, fmt.Errorf("look for bridge %s: %w", database.Integration, err)
	}
	return len(found) > 0, nil
}

func setRestoreWait(ctx context.Context, db *client.Client, wait bool) error {
	row, err := database.Root(ctx, db)
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
	if _, err := database.Transact(ctx, db, operations); err != nil {
		return fmt.Errorf("set %s: %w", restoreWait, err)
	}
	return nil
}
