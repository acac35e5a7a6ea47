// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRemoveDataLeavesFilesOfOthers(t *testing.T) {
	directory := t.TempDir()
	ours := []string{
		"ovnnb_db.db", "ovnsb_db.db", ".ovnnb_db.db.~lock~", "ovnsb_db.db.aside-20260101T000000.000", "ovnnb_db.db.since",
		"backups/ovnnb_db-20260101T000000Z.db",
	}
	others := []string{"conf.db", "ovnnb_db.note", "backups/mine.db"}
	for _, name := range append(ours, others...) {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := RemoveData(directory); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range ours {
		if _, err := os.Stat(filepath.Join(directory, name)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	for _, name := range others {
		if _, err := os.Stat(filepath.Join(directory, name)); err != nil {
			t.Errorf("%s, which is no database's, was removed: %v", name, err)
		}
	}
}
