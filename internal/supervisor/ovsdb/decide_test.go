// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestDecide(t *testing.T) {
	const node = "cp-1"
	self := netip.MustParseAddr("192.0.2.1")
	members := []v1alpha1.DatabaseMember{
		{Node: "cp-1", Address: "192.0.2.1"},
		{Node: "cp-2", Address: "192.0.2.2", ServerID: "a1b2"},
		{Node: "cp-3", Address: "2001:db8::3"},
	}
	file := func(id string) *identity { return &identity{path: "/etc/ovn/ovnnb_db.db", clusterID: id} }

	tests := []struct {
		name   string
		file   *identity
		status v1alpha1.DatabaseStatus
		want   plan
		reason string // part of the reason to wait
		err    string // part of the refusal
	}{
		{
			name:   "nothing is recorded: wait for the operator",
			reason: "not recorded yet which node",
		},
		{
			name:   "another node is to create the cluster: wait for it",
			status: v1alpha1.DatabaseStatus{BootstrapNode: "cp-2"},
			reason: "node cp-2 creates",
		},
		{
			name:   "this node is to create the cluster: create",
			status: v1alpha1.DatabaseStatus{BootstrapNode: node},
			want:   plan{step: stepCreate},
		},
		{
			name:   "a cluster is recorded: join it through members that serve",
			status: v1alpha1.DatabaseStatus{ClusterID: "c", BootstrapNode: node, Members: members},
			want:   plan{step: stepJoin, clusterID: "c", remotes: []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
		},
		{
			name:   "a cluster is recorded and no member is known to serve: join through any, never through itself",
			status: v1alpha1.DatabaseStatus{ClusterID: "c", Members: []v1alpha1.DatabaseMember{members[0], members[2]}},
			want:   plan{step: stepJoin, clusterID: "c", remotes: []netip.Addr{netip.MustParseAddr("2001:db8::3")}},
		},
		{
			name:   "the only member's file is gone: never create a second cluster",
			status: v1alpha1.DatabaseStatus{ClusterID: "c", BootstrapNode: node, Members: members[:1]},
			reason: "put the file back",
		},
		{
			name:   "a file, and its cluster is recorded: start",
			file:   file("c"),
			status: v1alpha1.DatabaseStatus{ClusterID: "c"},
			want:   plan{step: stepStart},
		},
		{
			name:   "a file that has not finished joining: start, it goes on",
			file:   file(""),
			status: v1alpha1.DatabaseStatus{ClusterID: "c"},
			want:   plan{step: stepStart},
		},
		{
			name:   "this node created the file and the ID is not recorded yet: start",
			file:   file("c"),
			status: v1alpha1.DatabaseStatus{BootstrapNode: node},
			want:   plan{step: stepStart},
		},
		{
			name:   "a file from before, while another node is to create the cluster: wait, it may turn out to be foreign",
			file:   file("old"),
			status: v1alpha1.DatabaseStatus{BootstrapNode: "cp-2"},
			reason: "is here already",
		},
		{
			name:   "a file of another cluster: refuse",
			file:   file("old"),
			status: v1alpha1.DatabaseStatus{ClusterID: "c"},
			err:    "belongs to cluster old, but the OVNCluster's is c",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := decide(test.file, test.status, node, self)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got error %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(got.reason, test.reason) || (test.reason == "") != (got.reason == "") {
				t.Errorf("reason %q, want one with %q", got.reason, test.reason)
			}
			got.reason = ""
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(plan{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPassive(t *testing.T) {
	for address, want := range map[string]string{
		"::":         "pssl:6641:[::]",
		"0.0.0.0":    "pssl:6641:0.0.0.0",
		"2001:db8::": "pssl:6641:[2001:db8::]",
	} {
		if got := passive(6641, netip.MustParseAddr(address)); got != want {
			t.Errorf("passive(6641, %s) = %s, want %s", address, got, want)
		}
	}
}
