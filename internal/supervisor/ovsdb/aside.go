// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// keptAside is how many files that were set aside stay, of those that could go.
const keptAside = 3

// aside is the name under which a file stays that has no use any more. By name they are in the order of their time.
func (f files) aside() string {
	return f.path + ".aside-" + time.Now().UTC().Format("20060102T150405.000")
}

// setAside gives the file another name and returns it.
func (f files) setAside() (string, error) {
	aside := f.aside()
	if err := os.Rename(f.path, aside); err != nil {
		return "", fmt.Errorf("set the database file aside: %w", err)
	}
	return aside, syncDir(filepath.Dir(f.path))
}

// pruneAside deletes files of this cluster that were set aside, but for the newest, and returns their names. Those of other clusters, which may
// hold what a recovery left out, and those of which that cannot be read, are left to people.
func (f files) pruneAside(ctx context.Context, clusterID string) (deleted []string, err error) {
	all, err := filepath.Glob(f.path + ".aside-*")
	if err != nil {
		return nil, fmt.Errorf("look for files that were set aside: %w", err)
	}
	slices.Sort(all)
	slices.Reverse(all)
	kept := 0
	for _, path := range all {
		if id, err := f.clusterIDOf(ctx, path); err != nil || id != clusterID {
			continue
		}
		if kept++; kept <= keptAside {
			continue
		}
		if err := os.Remove(path); err != nil {
			return deleted, fmt.Errorf("delete a file that was set aside: %w", err)
		}
		deleted = append(deleted, path)
	}
	return deleted, nil
}

// pruneAside deletes old files that were set aside, and says whether it was the time for it: when the cluster that is recorded counts this very
// member and hears it. What a file of the cluster holds is then with members that agree on it.
func (m *member) pruneAside(ctx context.Context, f files) (done bool) {
	recorded := m.options.Database.Of(m.cluster.Status)
	live, err := m.Status(ctx)
	if err != nil || !live.Connected || live.ClusterID != recorded.ClusterID || recorded.Recovering() {
		return false
	}
	if !slices.ContainsFunc(recorded.Members, func(d v1alpha1.DatabaseMember) bool {
		return d.Node == m.options.Node && d.ServerID == live.ServerID
	}) {
		return false
	}
	deleted, err := f.pruneAside(ctx, live.ClusterID)
	for _, path := range deleted {
		m.options.Log.Info("deleted an old file that had been set aside", "file", path, "newer", keptAside)
	}
	if err != nil {
		m.options.Log.Error(err, "old files stay") // until the next start
	}
	return true
}
