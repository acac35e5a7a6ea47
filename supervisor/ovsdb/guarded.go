// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fsnotify/fsnotify"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/portguard"
)

// Statuses of a member whose ports are not limited. Both say what to do.
const (
	waitingForGuard = "nftables of this node do not limit the access to the database's ports yet: the pod ovs-ovn of the node does that at its start, see its log " + orOpen
	cannotBeGuarded = "nftables of this node cannot limit the access to the database's ports: repair nftables of the node " + orOpen + ": "
	orOpen          = "(or set spec.central.portAccess to Open and protect the ports yourself)"
)

// unguarded returns why `kiln ovs` cannot limit the access to the member's ports, "" if it reports no failure.
func (m *member) unguarded() string {
	if why := portguard.Failure(m.options.RunDir); why != "" {
		return cannotBeGuarded + why
	}
	return ""
}

// waitForGuard sets the status of a member that must wait. The wait has no end: a member that listens without a guard is open to each node.
func (m *member) waitForGuard() {
	reason := cmp.Or(m.unguarded(), waitingForGuard)
	if had := m.waiting.Load(); had == nil || had.Waiting != reason {
		m.options.Log.Info("waiting", "reason", reason)
	}
	m.wait(reason)
}

// guardedFile has, next to the database file, the UID of the OVNCluster with which `kiln ovs` of this node has limited the access to the member's ports. Without
// it the member does not wait: during an installation the databases start before ovs-ovn exists, also on data that a removal has retained.
func (f files) guardedFile() string { return f.path + ".guarded" }

// mustWait reports whether the member must not listen yet: its ports were limited before a reboot of the node, and are not yet limited again.
func (m *member) mustWait(f files) bool {
	if m.cluster.Spec.Central.PortAccess == v1alpha1.PortAccessOpen || portguard.Reported(m.options.RunDir) {
		return false
	}
	recorded, err := os.ReadFile(f.guardedFile())
	return err == nil && string(recorded) == string(m.cluster.UID)
}

// watchGuard sends to changed when `kiln ovs` reports that the ports are limited, which it records in the data directory, or another failure. It returns
// when ctx ends.
func (m *member) watchGuard(ctx context.Context, changed chan<- struct{}) {
	report := func(err error) {
		if ctx.Err() == nil {
			m.options.Log.Error(err, "watching again whether the access to the ports is limited")
		}
	}
	supervisor.Retry(ctx, report, func() error { return m.followGuard(ctx, changed) })
}

func (m *member) followGuard(ctx context.Context, changed chan<- struct{}) error {
	if err := os.MkdirAll(m.options.RunDir, 0o755); err != nil { //nolint:gosec // other users of the node list it; secrets are in files of mode 0600
		return fmt.Errorf("make the directory of sockets: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", m.options.RunDir, err)
	}
	defer watcher.Close()
	if err := watcher.Add(m.options.RunDir); err != nil {
		return fmt.Errorf("watch %s: %w", m.options.RunDir, err)
	}
	failure := ""
	for {
		reported, before := portguard.Reported(m.options.RunDir), failure
		if failure = portguard.Failure(m.options.RunDir); reported || failure != before {
			if err := m.recordGuard(); err != nil {
				return err
			}
			select {
			case changed <- struct{}{}:
			default: // a change is pending already
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-watcher.Events:
			if !open {
				return errors.New("the watch of " + m.options.RunDir + " ended")
			}
		case err := <-watcher.Errors:
			return fmt.Errorf("watch %s: %w", m.options.RunDir, err)
		}
	}
}

// recordGuard records that the access to the ports is limited, if it is and the OVNCluster is known.
func (m *member) recordGuard() error {
	installation := m.installation.Load()
	if installation == nil || !portguard.Reported(m.options.RunDir) {
		return nil
	}
	path := newFiles(m.options).guardedFile()
	if recorded, err := os.ReadFile(path); err == nil && string(recorded) == string(*installation) {
		return nil
	}
	if err := os.MkdirAll(m.options.DataDir, 0o750); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	if err := os.WriteFile(path, []byte(*installation), 0o600); err != nil {
		return fmt.Errorf("record that the access to the ports is limited: %w", err)
	}
	return nil
}
