// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// background runs a program of the root file system until the test ends.
func background(t *testing.T, path string, args ...string) {
	t.Helper()
	argv := slices.Concat(supervisortest.Program(t, path), args, []string{"-vsyslog:off", "-vconsole:warn"})
	name := filepath.Base(path)
	daemontest.Start(t, name, filepath.Join(t.TempDir(), name+".log"), exec.Command(argv[0], argv[1:]...))
}

// TestControllersReconnectOnlyOnRequest verifies what nodes rely on while a recovery recreates the southbound database:
// ovn-controller ignores the new database, whose index is lower, until sb-cluster-state-reset.
func TestControllersReconnectOnlyOnRequest(t *testing.T) {
	tr := newTrial(t)
	m, _ := tr.bootstrap("cp-1", "127.0.3.9")
	for i := range 20 { // an index that the new cluster does not reach by itself
		m.insert(t, fmt.Sprint("a", i))
	}
	control, log := tr.controller(m, "n1")
	until := func(want string) {
		t.Helper()
		supervisortest.Eventually(t, "ovn-controller is "+want, func() error {
			got, err := unixctl.Call(t.Context(), control, "connection-status")
			if err == nil && got != want {
				err = fmt.Errorf("it is %s", got)
			}
			return err
		})
	}
	until("connected")
	supervisortest.Eventually(t, "ovn-controller has read the database, and with it the index", func() error {
		if chassis := m.transact(t, map[string]any{"op": "select", "table": "Chassis", "where": []any{}, "columns": []string{"name"}}); len(chassis[0].Rows) == 0 {
			return errors.New("it has written no chassis")
		}
		return nil
	})

	status, _ := tr.recover(m, tr.recovery(m, v1alpha1.RecoverRebuild, "", 1000), m)
	supervisortest.Eventually(t, "ovn-controller finds that the new one is behind", func() error {
		said, err := os.ReadFile(log)
		if err == nil && !strings.Contains(string(said), "clustered database server has stale data") {
			err = fmt.Errorf("its log is %s", said)
		}
		return err
	})
	if names := m.content(t); names != "" || status.ClusterID == "" {
		t.Fatalf("cluster %q holds %q", status.ClusterID, names)
	}
	until("not connected") // except for the moments of its connection attempts
	if _, err := unixctl.Call(t.Context(), control, "sb-cluster-state-reset"); err != nil {
		t.Fatal(err)
	}
	until("connected")
}
