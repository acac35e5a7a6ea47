// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// write creates files, each with a content.
func write(t *testing.T, dir string, content map[string]string) {
	t.Helper()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
}

// content returns the files below a directory.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		found[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func databaseFiles() map[string]string {
	return map[string]string{
		"ovnsb_db.db": "current", "ovnsb_db.db.since": "since", "ovnsb_db.db.aside-20260101T000000.000": "aside",
		"backups/ovnsb_db-20260101T000000Z.db": "backup",
	}
}

// TestDataMovesWithEveryInterruption makes each file operation of a move fail once, by a directory in its place, and repeats the move.
func TestDataMovesWithEveryInterruption(t *testing.T) {
	others := map[string]string{"ovnnb_db.db": "of the other database", "notes": "of the user"}
	move := func(from, to string) error { return moveData(t.Context(), Southbound, from, to, logr.Discard()) }
	for _, blocked := range append(slices.Sorted(maps.Keys(databaseFiles())), "") {
		from, to := t.TempDir(), filepath.Join(t.TempDir(), "new", "ovn")
		write(t, from, databaseFiles())
		write(t, from, others)
		if blocked != "" {
			if err := os.MkdirAll(filepath.Join(to, blocked+unfinishedMove), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := move(from, to); err == nil {
				t.Errorf("%s: the move did not fail", blocked)
			}
			if _, err := os.Stat(filepath.Join(from, "ovnsb_db.db")); err != nil {
				t.Errorf("%s: an interrupted move has deleted the database file: %v", blocked, err)
			}
			if err := os.Remove(filepath.Join(to, blocked+unfinishedMove)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the second time there is nothing to do
			if err := move(from, to); err != nil {
				t.Fatalf("%s: %v", blocked, err)
			}
			if got := content(t, to); !maps.Equal(got, databaseFiles()) {
				t.Errorf("%s: the new directory has %v", blocked, got)
			}
			if got := content(t, from); !maps.Equal(got, others) {
				t.Errorf("%s: the previous directory has %v", blocked, got)
			}
		}
	}
}

// The move was interrupted before it had deleted the old files, or the new directory has a database of an earlier time.
func TestTheDatabaseOfThePreviousDirectoryIsTheCurrentOne(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	write(t, from, databaseFiles())
	write(t, to, map[string]string{"ovnsb_db.db": "stale", "ovnsb_db.db.since": "stale"})
	if err := moveData(t.Context(), Southbound, from, to, logr.Discard()); err != nil {
		t.Fatal(err)
	}
	got, asides := content(t, to), 0
	for name, text := range got {
		if strings.HasPrefix(name, "ovnsb_db.db.aside-") && text == "stale" {
			asides++
			delete(got, name)
		}
	}
	if !maps.Equal(got, databaseFiles()) || asides != 1 {
		t.Errorf("the new directory has %v and %d files set aside", got, asides)
	}
}

func TestADirectoryUnderTwoNamesIsNotMoved(t *testing.T) {
	from, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	write(t, from, databaseFiles())
	if err := os.Symlink(from, link); err != nil {
		t.Fatal(err)
	}
	if err := moveData(t.Context(), Southbound, from, link, logr.Discard()); err != nil {
		t.Fatal(err)
	}
	if got := content(t, from); !maps.Equal(got, databaseFiles()) {
		t.Errorf("the directory has %v", got)
	}
}

// TestAMemberContinuesInAnotherDirectory runs a real server before and after the move.
func TestAMemberContinuesInAnotherDirectory(t *testing.T) {
	tr := newTrial(t)
	m := tr.add("node-1", "127.0.0.1")
	record := v1alpha1.DatabaseStatus{BootstrapNode: "node-1", Members: []v1alpha1.DatabaseMember{{Node: "node-1", Address: "127.0.0.1"}}}
	tr.start(m, record)
	before := tr.untilConnected(m, 1)
	tr.must(m.halt())
	record.ClusterID, record.Members[0].ServerID = before.ClusterID, before.ServerID
	m.options.PreviousDataDir, m.options.DataDir = m.options.DataDir, filepath.Join(t.TempDir(), "elsewhere")
	tr.start(m, record)
	if after := tr.untilConnected(m, 1); after.ClusterID != before.ClusterID || after.ServerID != before.ServerID {
		t.Errorf("the member was %s of cluster %s, and is %s of %s", before.ServerID, before.ClusterID, after.ServerID, after.ClusterID)
	}
	if left := content(t, m.options.PreviousDataDir); len(left[Southbound.Stem+".db"]) > 0 {
		t.Errorf("the previous directory has %d files", len(left))
	}
}
