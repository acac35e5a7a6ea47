// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// TestSettingsInTheDatabase: Kiln's settings are written, and those of an administrator stay.
func TestSettingsInTheDatabase(t *testing.T) {
	o := Options{
		ConfigDir: t.TempDir(), RunDir: supervisortest.RunDir(t), OVNRunDir: t.TempDir(), Log: supervisortest.Log(t),
		Programs: Programs{
			Tool: supervisortest.Program(t, "usr/bin/ovsdb-tool"), Server: supervisortest.Program(t, "usr/sbin/ovsdb-server"),
			Schema: supervisortest.File(t, DefaultPrograms.Schema),
		},
	}
	must.Succeed(t, prepareDatabase(t.Context(), o))
	server, _, _ := daemons(o, nil, nil)
	background(t, func(ctx context.Context) error { return supervisor.RunInOrder(ctx, server) })
	db := connect(t.Context(), o)
	t.Cleanup(db.Close)

	row := must.Value(database.Root(t.Context(), db))
	theirs := map[string]string{"stats-update-interval": "5000"}
	operations := must.Value(db.Where(row).Mutate(row, model.Mutation{Field: &row.OtherConfig, Mutator: ovsdb.MutateOperationInsert, Value: theirs}))
	must.Value(database.Transact(t.Context(), db, operations))
	for range 2 { // the second pass changes nothing
		must.Succeed(t, configure(t.Context(), db, settings{node: "n1", tunnelTypes: []v1alpha1.TunnelType{v1alpha1.TunnelGeneve}, encapsulation: "192.0.2.1"}))
		var rows []vswitch.OpenvSwitch
		must.Succeed(t, db.List(t.Context(), &rows))
		want := map[string]string{"bundle-idle-timeout": "180", "stats-update-interval": "5000"}
		if !maps.Equal(rows[0].OtherConfig, want) {
			t.Errorf("other_config is %v, want %v", rows[0].OtherConfig, want)
		}
		ids := rows[0].ExternalIDs
		if probe := must.Value(strconv.Atoi(ids["ovn-remote-probe-interval"])); probe < 60000 {
			t.Errorf("ovn-controller's probe is %d ms: many chassis that read the database at once need a minute", probe)
		}
		if limit := must.Value(strconv.Atoi(ids["ovn-memlimit-lflow-cache-kb"])); limit == 0 {
			t.Error("the cache of logical flows has no limit")
		}
	}
}

// ovn-controller's own probe takes minutes, so the list of its remotes follows the operator's reports.
func TestASilentMemberIsNoRemote(t *testing.T) {
	members := func(roles ...string) v1alpha1.DatabaseStatus {
		db := v1alpha1.DatabaseStatus{ClusterID: "c"}
		for i, role := range roles {
			id := strconv.Itoa(i + 1)
			db.Members = append(db.Members, v1alpha1.DatabaseMember{Node: "n" + id, Address: "192.0.2." + id, ServerID: id, Role: role})
		}
		return db
	}
	n := &node{}
	for _, step := range []struct {
		status v1alpha1.DatabaseStatus
		want   []string
	}{
		{members("leader", "follower", "follower"), []string{"ssl:192.0.2.1:6642", "ssl:192.0.2.2:6642", "ssl:192.0.2.3:6642"}},
		{members("", "leader", "follower"), []string{"ssl:192.0.2.2:6642", "ssl:192.0.2.3:6642"}},
		{members("", "", ""), []string{"ssl:192.0.2.1:6642", "ssl:192.0.2.2:6642", "ssl:192.0.2.3:6642"}},
	} {
		if n.follow(step.status); !slices.Equal(n.remotes, step.want) {
			t.Errorf("%+v: the remotes are %v, want %v", step.status.Members, n.remotes, step.want)
		}
	}
}
