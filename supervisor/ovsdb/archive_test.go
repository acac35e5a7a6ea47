// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

const archiveAddress = "127.0.3.20"

// archive runs an archive for the trial in this directory.
func (tr *trial) archive(of *trialMember, directory string) (clusters chan *v1alpha1.OVNCluster) {
	tr.t.Helper()
	clusters = make(chan *v1alpha1.OVNCluster, 1)
	o := ArchiveOptions{
		Database: of.options.Database, Directory: directory, Listen: netip.MustParseAddr(archiveAddress), HealthAddress: archiveAddress + ":6664",
		TLSDir: tr.servers.TLSDir(tr.t, adminapi.ArchiveName, map[string][]byte{
			"ca.crt": tr.servers.PEM, "admin-ca.crt": slices.Concat(tr.servers.PEM, tr.callers.PEM),
		}),
		Tool: of.options.Programs.Tool, Clusters: clusters, Log: supervisortest.Log(tr.t),
	}
	ctx, cancel := context.WithCancel(tr.t.Context())
	done := make(chan error, 1)
	go func() { done <- RunArchive(ctx, o) }()
	supervisortest.Watch(ctx, tr.t, "the archive", done)
	tr.t.Cleanup(func() { cancel(); tr.must(<-done) })
	return clusters
}

// reader is a client of the archive with a certificate from the given CA.
func (tr *trial) reader(authority supervisortest.Authority) *adminapi.Client {
	certificate, key := authority.Issue(tr.t, "reader")
	pair, err := tls.X509KeyPair(certificate, key)
	tr.must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(tr.servers.PEM)
	return adminapi.NewClient(netip.AddrPortFrom(netip.MustParseAddr(archiveAddress), adminapi.PortArchive), &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: adminapi.ArchiveName,
	})
}

// TestArchive checks that a database whose nodes are all lost is recreated on another node from the archive's backup.
func TestArchive(t *testing.T) {
	tr := newTrial(t)
	lost, said := tr.bootstrap("cp-1", "127.0.3.21")
	lost.insert(t, "a")
	status := v1alpha1.DatabaseStatus{BootstrapNode: "cp-1", ClusterID: said.ClusterID, Members: []v1alpha1.DatabaseMember{
		{Node: "cp-0", Address: "127.0.3.29"}, // does not answer
		{Node: "cp-1", Address: "127.0.3.21", ServerID: said.ServerID},
	}}
	directory := t.TempDir()
	clusters := tr.archive(lost, directory)
	tell := func(status v1alpha1.DatabaseStatus, request string) {
		cluster := &v1alpha1.OVNCluster{Status: v1alpha1.OVNClusterStatus{Southbound: status}}
		cluster.Spec.Central.Backup = v1alpha1.Backup{Interval: metav1.Duration{Duration: time.Hour}, Keep: 2, Request: request}
		clusters <- cluster
	}
	awaitStatus := func(what string, is func(adminapi.Status) bool) (status adminapi.Status) {
		supervisortest.Eventually(t, what, func() (err error) {
			if status, err = tr.reader(tr.callers).Status(t.Context()); err == nil && !is(status) {
				err = fmt.Errorf("it says %+v", status)
			}
			return err
		})
		return status
	}

	other := status
	other.ClusterID = "10000000-0000-4000-8000-000000000009"
	tell(other, "")
	failed := awaitStatus("why there is none", func(s adminapi.Status) bool { return s.BackupFailure != "" })
	if !strings.Contains(failed.BackupFailure, "127.0.3.29") || !strings.Contains(failed.BackupFailure, "of cluster") || len(failed.Backups) > 0 {
		t.Errorf("it says %+v", failed)
	}
	tell(status, "before-it")
	made := awaitStatus("a backup", func(s adminapi.Status) bool { return len(s.Backups) > 0 && s.BackupFailure == "" }).Backups[0]
	if made.Request != "before-it" || made.Rows == 0 {
		t.Errorf("it made %+v", made)
	}
	lost.insert(t, "b")

	t.Run("a client without the right to read gets nothing, and no client other files", func(t *testing.T) {
		tr.must(os.WriteFile(filepath.Join(directory, "secret"), []byte("secret"), 0o600))
		var got bytes.Buffer
		if err := tr.reader(supervisortest.NewAuthority(t, "strangers")).Backup(t.Context(), made.Name, &got); err == nil || got.Len() > 0 {
			t.Errorf("a stranger got %d bytes, %v", got.Len(), err)
		}
		for _, name := range []string{"secret", "../" + filepath.Base(directory) + "/secret", strings.Replace(made.Name, "before-it", "/../secret", 1)} {
			if err := tr.reader(tr.callers).Backup(t.Context(), name, &got); err == nil || got.Len() > 0 {
				t.Errorf("%s: got %d bytes, %v", name, got.Len(), err)
			}
		}
	})
	t.Run("another node takes the backup in, and makes the database from it", func(t *testing.T) {
		tr.must(lost.halt())
		fresh := tr.add("cp-2", "127.0.3.22")
		recovery := tr.recovery(fresh, v1alpha1.RecoverBackup, made.Name, 1000)
		recovery.Recovery.BackupAddress = archiveAddress
		tr.start(fresh, recovery)
		tr.recover(fresh, recovery, fresh)
		if got := fresh.content(t); got != "a" {
			t.Errorf("it holds %q", got)
		}
	})
}
