// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

const (
	// never is as good as no backup at all.
	never = 365 * 24 * time.Hour
	// backupRetry is when a backup that was not made is tried again.
	backupRetry = time.Minute
)

// backups are what is known of a member's backups.
type backups struct {
	mu      sync.Mutex
	all     []adminapi.Backup
	failure string
}

// found reads which there are.
func (b *backups) found(f files) {
	all, err := f.listBackups()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range all { // what was counted stays known
		at := slices.IndexFunc(b.all, func(known adminapi.Backup) bool { return known.Name == all[i].Name })
		if at >= 0 {
			all[i].Rows = b.all[at].Rows
		}
	}
	b.all = all
	if err != nil {
		b.failure = err.Error()
	}
}

func (b *backups) tell(status *adminapi.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	status.Backups, status.BackupFailure = slices.Clone(b.all), b.failure
}

func (b *backups) last() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) == 0 {
		return time.Time{}
	}
	return b.all[0].Time
}

func (b *backups) made(one adminapi.Backup, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failure = ""
	if err != nil {
		b.failure = err.Error()
		return
	}
	b.all = slices.Insert(b.all, 0, one)
}

// backUpIfDue makes a backup when the last one is older than the interval, and returns when to look again. While a recovery is under way
// there is none: the database may not be complete yet.
func (m *member) backUpIfDue(ctx context.Context, f files) time.Duration {
	wanted, status := m.cluster.Spec.Central.Backup, m.options.Database.Of(m.cluster.Status)
	interval := wanted.Interval.Duration
	if !m.options.Database.Backed || interval <= 0 || status.ClusterID == "" || status.Recovering() {
		return never
	}
	now := time.Now()
	if wait := m.backups.last().Add(interval).Sub(now); wait > 0 {
		return min(wait, interval) // the clock may have been set back
	}
	if m.ready(ctx) != nil {
		return backupRetry // what it has may be old; a change of the record, such as its being a member, comes sooner
	}
	one, err := f.backUp(ctx, m.options.socket(), now, max(1, int(wanted.Keep)))
	if ctx.Err() != nil {
		return never
	}
	m.backups.made(one, err)
	m.backups.found(f)
	if err != nil {
		m.options.Log.Error(err, "no backup was made")
		return min(backupRetry, interval)
	}
	m.options.Log.Info("made a backup", "name", one.Name, "rows", one.Rows)
	return interval
}
