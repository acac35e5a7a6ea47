// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

var (
	hourly  = v1alpha1.Backup{Interval: metav1.Duration{Duration: time.Hour}, Keep: 2}
	serving = v1alpha1.DatabaseStatus{ClusterID: "c"}
)

// TestABackupThatHangsEnds has a server that never responds: the attempt fails, and the next one is due soon.
func TestABackupThatHangsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backups
		hang := func(ctx context.Context) (*jsonrpc.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		wait := b.makeIfDue(t.Context(), files{backupDir: t.TempDir()}, hourly, serving, hang, logr.Discard())
		var status adminapi.Status
		b.tell(&status)
		if wait != backupRetry || !strings.Contains(status.BackupFailure, "did not end within") {
			t.Errorf("the next attempt is in %s, and the failure is %q", wait, status.BackupFailure)
		}
	})
}

// TestAMemberIsSupersededDuringABackup has a server that never responds to the backup's first call.
func TestAMemberIsSupersededDuringABackup(t *testing.T) {
	clusters := make(chan *v1alpha1.OVNCluster, 1)
	m := &member{
		options: Options{Database: Northbound, DataDir: t.TempDir(), RunDir: supervisortest.RunDir(t), Clusters: clusters, Log: logr.Discard()},
		cluster: &v1alpha1.OVNCluster{
			Spec:   v1alpha1.OVNClusterSpec{Central: v1alpha1.Central{Backup: hourly}},
			Status: v1alpha1.OVNClusterStatus{Northbound: serving},
		},
	}
	listener, err := net.Listen("unix", m.options.control())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan error, 1)
	go func() { done <- m.follow(t.Context(), newFiles(m.options), time.Unix(1000, 0)) }()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	replaced := m.cluster.DeepCopy()
	replaced.Status.Northbound.Since = new(metav1.Unix(2000, 0))
	clusters <- replaced
	select {
	case err := <-done:
		if !errors.Is(err, errSuperseded) {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second): // less than the time limit of a call to the server
		t.Error("the member does not notice that its cluster is replaced")
	}
}

// TestABackupCountsEvenIfOldOnesAreNotDeleted has an entry that cannot be deleted among the old backups.
func TestABackupCountsEvenIfOldOnesAreNotDeleted(t *testing.T) {
	tr := newTrial(t)
	m, _ := tr.bootstrap("cp-1", "127.0.3.16")
	m.insert(t, "a")
	f := newFiles(m.options)
	stuck := filepath.Join(f.backups(), "ovnsb_db-20200101T000000Z.db")
	tr.must(os.MkdirAll(filepath.Join(stuck, "full"), 0o750))
	connect := func(ctx context.Context) (*jsonrpc.Conn, error) { return jsonrpc.Dial(ctx, m.options.socket()) }
	var b backups
	status := func() (status adminapi.Status) { b.tell(&status); return status }
	wanted := hourly
	wanted.Keep = 1

	wait := b.makeIfDue(t.Context(), f, wanted, serving, connect, m.options.Log)
	said := status()
	if wait != backupRetry || len(said.Backups) != 2 || said.Backups[0].Rows == 0 || !strings.Contains(said.BackupFailure, "a backup was made, but") {
		t.Errorf("the next attempt is in %s: %+v", wait, said)
	}
	made := said.Backups
	tr.must(os.Remove(filepath.Join(stuck, "full")))
	wait = b.makeIfDue(t.Context(), f, wanted, serving, connect, m.options.Log)
	said = status()
	if wait <= backupRetry || said.BackupFailure != "" || len(said.Backups) != 1 || said.Backups[0] != made[0] {
		t.Errorf("the next backup is in %s: %+v, want only the first of %+v", wait, said, made)
	}
}

// TestARecoveryKeepsOldBackups has a backup after which old ones were not deleted before the recovery began.
func TestARecoveryKeepsOldBackups(t *testing.T) {
	f, wanted := files{database: Southbound, backupDir: t.TempDir()}, hourly
	wanted.Keep = 1
	for _, name := range []string{"ovnsb_db-20200101T000000Z.db", "ovnsb_db-20200102T000000Z.db"} {
		if err := os.WriteFile(filepath.Join(f.backups(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	connect := func(context.Context) (*jsonrpc.Conn, error) { return nil, errors.New("a backup was tried") }
	for _, suspending := range []v1alpha1.DatabaseStatus{
		{},
		{ClusterID: "c", Recovery: &v1alpha1.RecoveryStatus{Phase: v1alpha1.RecoveryCreating}},
		{ClusterID: "c", Recovery: &v1alpha1.RecoveryStatus{Phase: v1alpha1.RecoveryFilling}},
	} {
		b := backups{unsettled: true}
		b.found(f)
		if wait := b.makeIfDue(t.Context(), f, wanted, suspending, connect, logr.Discard()); wait != never || !b.unsettled || b.failure != "" {
			t.Errorf("%+v: the next step is in %s, unsettled: %t, failure: %q", suspending, wait, b.unsettled, b.failure)
		}
		if b.found(f); len(b.all) != 2 {
			t.Errorf("%+v: %d backups are left, want both", suspending, len(b.all))
		}
	}
}
