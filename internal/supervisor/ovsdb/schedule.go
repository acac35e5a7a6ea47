// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
	"github.com/kiln-net/kiln/internal/supervisor/jsonrpc"
)

const (
	// never is as good as no backup at all.
	never = 365 * 24 * time.Hour
	// backupRetry is when a backup that was not made is tried again.
	backupRetry = time.Minute
)

// backups are what is known of the backups in a directory.
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

// due is how long it is until the next backup, and the request that it is for, if any. While a recovery is under way there is none: the
// database may not be complete yet. A request is met by the file that has its name, whoever restarts in between, and not again once the status says so.
func (b *backups) due(wanted v1alpha1.Backup, status v1alpha1.DatabaseStatus, now time.Time) (request string, wait time.Duration) {
	if status.ClusterID == "" || status.Recovering() {
		return "", never
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	met := func(made adminapi.Backup) bool { return made.Request == wanted.Request }
	if wanted.Request != "" && !status.Requested(wanted.Request) && !slices.ContainsFunc(b.all, met) {
		return wanted.Request, 0
	}
	interval := wanted.Interval.Duration
	switch {
	case interval <= 0:
		return "", never
	case len(b.all) == 0:
		return "", 0
	}
	return "", min(b.all[0].Time.Add(interval).Sub(now), interval) // the clock may have been set back
}

// errNotServing says that there is nothing to back up now, which is no failure of backups.
var errNotServing = errors.New("the database does not serve")

// makeIfDue makes a backup of the database that connect reaches when there is to be one, and returns when to look again.
func (b *backups) makeIfDue(
	ctx context.Context, f files, wanted v1alpha1.Backup, status v1alpha1.DatabaseStatus,
	connect func(context.Context) (*jsonrpc.Conn, error), log logr.Logger,
) time.Duration {
	request, wait := b.due(wanted, status, time.Now())
	if wait > 0 {
		return wait
	}
	one, err := f.backUpFrom(ctx, connect, plannedBackup{at: time.Now(), request: request, keep: max(1, int(wanted.Keep)), pinned: wanted.Request})
	switch {
	case ctx.Err() != nil:
		return never
	case errors.Is(err, errNotServing):
		return backupRetry // a change of the record, such as its being a member, comes sooner
	}
	b.made(one, err)
	b.found(f)
	if err != nil {
		log.Error(err, "no backup was made")
		return backupRetry
	}
	log.Info("made a backup", "name", one.Name, "rows", one.Rows)
	_, wait = b.due(wanted, status, time.Now())
	return wait
}

// backUpIfDue makes a backup of what the member's own server holds, when it serves: what it has may be old otherwise.
func (m *member) backUpIfDue(ctx context.Context, f files) time.Duration {
	if !m.options.Database.Backed {
		return never
	}
	connect := func(ctx context.Context) (*jsonrpc.Conn, error) {
		if err := m.ready(ctx); err != nil {
			return nil, errors.Join(errNotServing, err)
		}
		return jsonrpc.Dial(ctx, m.options.socket())
	}
	return m.backups.makeIfDue(ctx, f, m.cluster.Spec.Central.Backup, m.options.Database.Of(m.cluster.Status), connect, m.options.Log)
}
