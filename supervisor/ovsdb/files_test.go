// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestTheRecordOfAMembershipIsReplacedInOneStep checks that the former record stays complete until the new one replaces it. An
// interrupted write in place would leave an empty record, which marks a healthy file as one of an earlier membership.
func TestTheRecordOfAMembershipIsReplacedInOneStep(t *testing.T) {
	directory := t.TempDir()
	f := files{path: filepath.Join(directory, "ovnsb_db.db")}
	first, second := time.Unix(1000, 0), time.Unix(2000, 0)
	if err := f.writeSince(first); err != nil {
		t.Fatal(err)
	}
	former := filepath.Join(directory, "former") // a second name of the first record's file
	if err := os.Link(f.sincePath(), former); err != nil {
		t.Fatal(err)
	}
	if err := f.writeSince(second); err != nil {
		t.Fatal(err)
	}
	if since, err := f.readSince(); err != nil || !since.Equal(second) {
		t.Errorf("the record is %s, %v", since, err)
	}
	if text, err := os.ReadFile(former); err != nil || string(text) != first.UTC().Format(time.RFC3339)+"\n" {
		t.Errorf("the former record was overwritten in place: %q, %v", text, err)
	}
	if left, err := os.ReadDir(directory); err != nil || len(left) != 2 {
		t.Errorf("the directory has %v, %v", left, err)
	}
}
