// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/node/bridges"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/supervisor"
)

// adoptionTimeout is how long ovs-vswitchd may take to process its whole configuration, in milliseconds.
const adoptionTimeout = 60_000

// CleanUp removes Open vSwitch from the node: it returns addresses and routes to the tunnel interface and deletes bridges,
// datapath, certificate, configuration and sockets. No other process may run the daemons at the same time. It can be interrupted
// after any step and called again. On a node where Run never ran it does nothing.
func CleanUp(ctx context.Context, o Options) error {
	if _, err := os.Stat(o.certificates()); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for the certificate of the chassis: %w", err)
	}
	if err := prepareDatabase(ctx, o); err != nil {
		return err
	}
	if err := dismantle(ctx, o); err != nil {
		return err
	}
	return errors.Join(bridges.TunnelShield.Drop(ctx), (&guard{known: true}).apply(ctx), removeFiles(o))
}

// dismantle starts the daemons once more, because only ovs-vswitchd knows its objects in the kernel, and stops it with `exit
// --cleanup`, which deletes them (ovs-vswitchd(8)).
func dismantle(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	database, forwarder, _ := daemons(o, nil, nil)
	forwarder.Daemon.Exit = []string{"--cleanup"}
	stopped := make(chan error, 1)
	go func() {
		stopped <- supervisor.RunInOrder(ctx, database, forwarder)
		cancel() // if a daemon gave up, stop waiting for it
	}()
	db := connect(ctx, o)
	if db == nil {
		return <-stopped
	}
	defer db.Close()
	err := releaseUplinks(ctx, o, db)
	cancel()
	return errors.Join(err, <-stopped)
}

// releaseUplinks waits until ovs-vswitchd has adopted the existing datapath, and returns addresses and routes to the interfaces that have moved to bridges.
func releaseUplinks(ctx context.Context, o Options, db *client.Client) error {
	row, err := database.Root(ctx, db)
	if err != nil {
		return err
	}
	if err := adopt(ctx, db, row); err != nil {
		return err
	}
	if err := bridges.New(o.bridges()).Release(ctx, db); err != nil {
		return err
	}
	return bridges.ReleaseTunnels(ctx, db, o.bridges())
}

// adopt makes ovs-vswitchd process its configuration and waits until it has done so (Open_vSwitch(5), next_cfg and cur_cfg).
func adopt(ctx context.Context, db *client.Client, row *vswitch.OpenvSwitch) error {
	row.NextCfg++
	ask, err := db.Where(row).Update(row, &row.NextCfg)
	if err != nil {
		return fmt.Errorf("ask ovs-vswitchd for its state: %w", err)
	}
	if _, err := database.Transact(ctx, db, ask); err != nil {
		return fmt.Errorf("ask ovs-vswitchd for its state: %w", err)
	}
	row.CurCfg = row.NextCfg
	wait, err := db.Where(row).Wait(ovsdb.WaitConditionEqual, new(adoptionTimeout), row, &row.CurCfg)
	if err != nil {
		return fmt.Errorf("wait for ovs-vswitchd: %w", err)
	}
	if _, err := database.Transact(ctx, db, wait); err != nil {
		return fmt.Errorf("wait for ovs-vswitchd to take up its configuration: %w", err)
	}
	return nil
}

// removeFiles deletes the files. The run directories are mount points and stay.
func removeFiles(o Options) error {
	var errs []error
	for _, directory := range []string{o.RunDir, o.OVNRunDir} {
		entries, err := os.ReadDir(directory)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("list runtime files: %w", err))
		}
		for _, e := range entries {
			errs = append(errs, os.RemoveAll(filepath.Join(directory, e.Name())))
		}
	}
	for _, name := range []string{"conf.db", ".conf.db.~lock~"} {
		errs = append(errs, os.RemoveAll(filepath.Join(o.ConfigDir, name)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(o.certificates()) // last: CleanUp takes this directory as the sign that something is left to remove
}
