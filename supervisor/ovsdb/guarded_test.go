// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/portguard"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestAMemberListensAfterARebootOnlyBehindTheGuard starts a member on a node whose ports were limited before a reboot.
func TestAMemberListensAfterARebootOnlyBehindTheGuard(t *testing.T) {
	tr := newTrial(t)
	m, created := tr.bootstrap("cp-1", "127.0.0.41")
	tr.must(portguard.Report(m.options.RunDir))
	supervisortest.Eventually(t, "the member records that its ports are limited", func() error {
		_, err := os.Stat(newFiles(m.options).guardedFile())
		return err
	})
	record := v1alpha1.OVNClusterStatus{Southbound: v1alpha1.DatabaseStatus{
		BootstrapNode: "cp-1", ClusterID: created.ClusterID,
		Members: []v1alpha1.DatabaseMember{{Node: "cp-1", Address: "127.0.0.41", ServerID: created.ServerID}},
	}}
	reboot := func() {
		t.Helper()
		tr.must(m.halt())
		tr.must(portguard.Withdraw(m.options.RunDir))
	}
	reboot()
	tr.startWith(m, record)
	status := func() adminapi.Status {
		t.Helper()
		status, err := tr.admin(m, tr.callers).Status(t.Context())
		tr.must(err)
		return status
	}
	waits := func(parts ...string) {
		t.Helper()
		supervisortest.Eventually(t, "the member waits for the guard", func() error {
			body := probe(t, m, http.StatusServiceUnavailable)
			for _, part := range append(parts, "nftables", "spec.central.portAccess") {
				if !strings.Contains(body, part) {
					return fmt.Errorf("no %q in %s", part, body)
				}
			}
			return nil
		})
	}
	waits("see its log")
	tr.must(portguard.Fail(m.options.RunDir, "operation not permitted"))
	waits("operation not permitted", "repair nftables")
	if status := status(); !strings.Contains(status.Unguarded, "operation not permitted") || status.Waiting != status.Unguarded {
		t.Errorf("the operator reads %+v", status)
	}
	for _, port := range []string{"6642", "6644", "6649"} {
		if conn, err := net.Dial("tcp", net.JoinHostPort(m.options.Address.String(), port)); err == nil {
			_ = conn.Close()
			t.Errorf("port %s is open without a guard", port)
		}
	}
	tr.must(portguard.Report(m.options.RunDir))
	tr.untilConnected(m, 1)
	if status := status(); status.Unguarded != "" {
		t.Errorf("behind the guard the operator reads %+v", status)
	}
	tr.must(portguard.Fail(m.options.RunDir, "flushed"))
	if status := status(); !strings.Contains(status.Unguarded, "flushed") || !status.Connected {
		t.Errorf("when the guard fails under a member that runs, the operator reads %+v", status)
	}

	t.Run("on retained data of an earlier installation", func(t *testing.T) {
		reboot()
		retained := newFiles(m.options).guardedFile()
		tr.must(os.WriteFile(retained, []byte("of a deleted OVNCluster"), 0o600))
		tr.startWith(m, record)
		tr.untilConnected(m, 1)
		tr.must(portguard.Report(m.options.RunDir))
		supervisortest.Eventually(t, "the guard of this installation is recorded", func() error {
			if recorded, err := os.ReadFile(retained); err != nil || len(recorded) > 0 { // the OVNCluster of the test has no UID
				return fmt.Errorf("the record is %q (%w)", recorded, err)
			}
			return nil
		})
	})
	t.Run("with open access", func(t *testing.T) {
		reboot()
		tr.startWith(m, record)
		cluster := &v1alpha1.OVNCluster{Status: *record.DeepCopy()}
		cluster.Spec.Central.PortAccess = v1alpha1.PortAccessOpen
		supervisortest.Eventually(t, "it has read its record", m.heard)
		m.clusters <- cluster
		tr.untilConnected(m, 1)
	})
}
