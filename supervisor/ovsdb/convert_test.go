// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// TestANewImageConvertsTheSchema checks that a member with a newer schema in its image converts the database only when
// requested.
func TestANewImageConvertsTheSchema(t *testing.T) {
	tr := newTrial(t)
	m := tr.add("node-1", "127.0.0.1")
	record := v1alpha1.DatabaseStatus{BootstrapNode: "node-1", Members: []v1alpha1.DatabaseMember{{Node: "node-1", Address: "127.0.0.1"}}}
	tr.start(m, record)
	status := tr.untilConnected(m, 1)
	admin := tr.admin(m, tr.callers)
	old, err := admin.Schemas(t.Context())
	tr.must(err)
	if old.Database == "" || old.Database != old.Image {
		t.Fatalf("a new database: %+v", old)
	}
	tr.must(m.halt())

	text, err := os.ReadFile(m.options.Database.Schema)
	tr.must(err)
	newer := filepath.Join(t.TempDir(), "newer.ovsschema")
	text = bytes.Replace(text, []byte(`"version": "`+old.Image+`"`), []byte(`"version": "99.0.0"`), 1)
	text = bytes.Replace(text, []byte(`"nb_cfg"`), []byte(`"added": {"type": "string"}, "nb_cfg"`), 1)
	tr.must(os.WriteFile(newer, text, 0o600))
	m.options.Database.Schema = newer
	record.ClusterID, record.Members[0].ServerID = status.ClusterID, status.ServerID
	tr.start(m, record)
	tr.untilConnected(m, 1)
	expect := func(want adminapi.Schemas) {
		t.Helper()
		got, err := admin.Schemas(t.Context())
		tr.must(err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("schemas (-want +got):\n%s", diff)
		}
	}
	expect(adminapi.Schemas{Database: old.Database, Image: "99.0.0"})
	tr.must(admin.Convert(t.Context()))
	expect(adminapi.Schemas{Database: "99.0.0", Image: "99.0.0"})
	tr.must(admin.Convert(t.Context())) // again: nothing to do
	if after := tr.untilConnected(m, 1); after.ClusterID != status.ClusterID {
		t.Errorf("the cluster was %s and is %s", status.ClusterID, after.ClusterID)
	}
}
