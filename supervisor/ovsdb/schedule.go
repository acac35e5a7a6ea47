// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

const (
	// never is the delay when no backup is due.
	never = 365 * 24 * time.Hour
	// backupRetry is the delay before a failed backup is retried.
	backupRetry = time.Minute
	// backupTimeout bounds one attempt. A server or a disk that hangs must not prevent all later backups.
	backupTimeout = 5 * time.Minute
)

// backups is the state of the backups in a directory.
type backups struct {
	mu      sync.Mutex
	all     []adminapi.Backup
	failure string
	// unsettled is set until the steps after the newest backup have succeeded. Only makeIfDue uses it.
	unsettled bool
}

// found lists the directory.
func (b *backups) found(f files) {
	all, err := f.listBackups()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range all { // keep the row counts
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

// made adds a backup.
func (b *backups) made(one adminapi.Backup) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = slices.Insert(b.all, 0, one)
}

// report replaces the failure; nil clears it.
func (b *backups) report(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failure = ""
	if err != nil {
		b.failure = err.Error()
	}
}

// suspended reports whether backups are neither made nor deleted: the database may be incomplete, and a recovery may need an old backup.
func suspended(status v1alpha1.DatabaseStatus) bool {
	return status.ClusterID == "" || status.Recovering()
}

// due returns the delay until the next backup and the request that it answers, if any. During a recovery no backup is
// due. A request is met once a file has its name, even across restarts, or once the status lists it.
func (b *backups) due(wanted v1alpha1.Backup, status v1alpha1.DatabaseStatus, now time.Time) (request string, wait time.Duration) {
	if suspended(status) {
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
	return "", min(b.all[0].Time.Add(interval).Sub(now), interval) // bounded, because the clock may have been set back
}

// errNotServing is returned when the database cannot be backed up at the moment. It does not count as a backup failure.
var errNotServing = errors.New("the database does not serve")

// whenDue calls backUp with the newest OVNCluster until ctx ends: at each change, and after the delay that the last call returned.
func whenDue(ctx context.Context, clusters <-chan *v1alpha1.OVNCluster, backUp func(*v1alpha1.OVNCluster) time.Duration) {
	var cluster *v1alpha1.OVNCluster
	due := time.NewTimer(never)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case cluster = <-clusters:
		case <-due.C:
		}
		due.Reset(backUp(cluster))
	}
}

// makeIfDue makes a backup through connect if one is due, and returns the delay until the next check.
func (b *backups) makeIfDue(
	ctx context.Context, f files, wanted v1alpha1.Backup, status v1alpha1.DatabaseStatus,
	connect func(context.Context) (*jsonrpc.Conn, error), log logr.Logger,
) time.Duration {
	request, wait := b.due(wanted, status, time.Now())
	if wait > 0 && (!b.unsettled || suspended(status)) {
		return wait
	}
	planned := plannedBackup{at: time.Now(), request: request, keep: max(1, int(wanted.Keep)), pinned: wanted.Request}
	var err error
	if wait > 0 {
		err = f.settle(planned)
	} else {
		var one adminapi.Backup
		one, err = f.backUpWithin(ctx, backupTimeout, connect, planned)
		switch {
		case ctx.Err() != nil:
			return never
		case errors.Is(err, errNotServing):
			return backupRetry // a change of the record, such as a new member, triggers a check earlier
		case err == nil || errors.Is(err, errUnsettled):
			b.made(one)
			log.Info("made a backup", "name", one.Name, "rows", one.Rows)
		}
	}
	b.unsettled = errors.Is(err, errUnsettled)
	b.report(err)
	b.found(f)
	if err != nil {
		log.Error(err, "backups fail")
		return backupRetry
	}
	_, wait = b.due(wanted, status, time.Now())
	return wait
}

// backUpWithin is backUpFrom with a time limit.
func (f files) backUpWithin(
	ctx context.Context, limit time.Duration, connect func(context.Context) (*jsonrpc.Conn, error), p plannedBackup,
) (adminapi.Backup, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	one, err := f.backUpFrom(ctx, connect, p)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("the backup did not end within %s: %w", limit, err)
	}
	return one, err
}

// backUpIfDue makes a backup of the member's own server if that serves; otherwise its data may be stale.
func (m *member) backUpIfDue(ctx context.Context, f files, cluster *v1alpha1.OVNCluster) time.Duration {
	if !m.options.Database.Backed {
		return never
	}
	connect := func(ctx context.Context) (*jsonrpc.Conn, error) {
		if err := m.ready(ctx); err != nil {
			return nil, errors.Join(errNotServing, err)
		}
		return jsonrpc.Dial(ctx, m.options.socket())
	}
	return m.backups.makeIfDue(ctx, f, cluster.Spec.Central.Backup, m.options.Database.Of(cluster.Status), connect, m.options.Log)
}
