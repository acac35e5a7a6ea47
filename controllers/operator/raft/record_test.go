// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

func TestWhatMembersReportIsRecorded(t *testing.T) {
	report := func(cluster, server, role string, term int64) adminapi.Status {
		return adminapi.Status{ClusterID: cluster, ServerID: server, Role: role, Term: term, Address: "ssl:[2001:db8::1]:6643", Connected: true}
	}
	member := func(node, server, role string) v1alpha1.DatabaseMember {
		return v1alpha1.DatabaseMember{Node: node, Address: "2001:db8::1", ServerID: server, Role: role}
	}
	for _, c := range []struct {
		name    string
		before  v1alpha1.DatabaseStatus
		reports map[string]adminapi.Status
		want    v1alpha1.DatabaseStatus
		problem string
	}{
		{
			name:    "the first report gives the cluster its ID",
			before:  v1alpha1.DatabaseStatus{BootstrapNode: "a", Members: []v1alpha1.DatabaseMember{{Node: "a", Address: "2001:db8::1"}}},
			reports: map[string]adminapi.Status{"a": report("one", "s1", "leader", 1)},
			want: v1alpha1.DatabaseStatus{
				BootstrapNode: "a", ClusterID: "one", Leader: "a", Term: 1, Members: []v1alpha1.DatabaseMember{member("a", "s1", "leader")},
			},
		},
		{
			name:   "a member that is silent keeps all but its role",
			before: v1alpha1.DatabaseStatus{ClusterID: "one", Leader: "a", Term: 4, Members: []v1alpha1.DatabaseMember{member("a", "s1", "leader")}},
			want:   v1alpha1.DatabaseStatus{ClusterID: "one", Term: 4, Members: []v1alpha1.DatabaseMember{member("a", "s1", "")}},
		},
		{
			name: "of two that say they lead, the newer term counts",
			before: v1alpha1.DatabaseStatus{ClusterID: "one", Members: []v1alpha1.DatabaseMember{
				member("a", "s1", ""), member("b", "s2", ""),
			}},
			reports: map[string]adminapi.Status{"a": report("one", "s1", "leader", 4), "b": report("one", "s2", "leader", 5)},
			want: v1alpha1.DatabaseStatus{ClusterID: "one", Leader: "b", Term: 5, Members: []v1alpha1.DatabaseMember{
				member("a", "s1", "leader"), member("b", "s2", "leader"),
			}},
		},
		{
			name:    "a leader of an older term does not lead",
			before:  v1alpha1.DatabaseStatus{ClusterID: "one", Term: 7, Members: []v1alpha1.DatabaseMember{member("a", "s1", "")}},
			reports: map[string]adminapi.Status{"a": report("one", "s1", "leader", 6)},
			want:    v1alpha1.DatabaseStatus{ClusterID: "one", Term: 7, Members: []v1alpha1.DatabaseMember{member("a", "s1", "leader")}},
		},
		{
			name:    "a member that knows no cluster yet is not recorded",
			before:  v1alpha1.DatabaseStatus{ClusterID: "one", Members: []v1alpha1.DatabaseMember{member("a", "s1", "")}},
			reports: map[string]adminapi.Status{"b": report("", "s2", "candidate", 0)},
			want:    v1alpha1.DatabaseStatus{ClusterID: "one", Members: []v1alpha1.DatabaseMember{member("a", "s1", "")}},
		},
		{
			name:    "a member that is not connected yet has not joined",
			before:  v1alpha1.DatabaseStatus{ClusterID: "one", Members: []v1alpha1.DatabaseMember{member("a", "", "")}},
			reports: map[string]adminapi.Status{"a": {ClusterID: "one", ServerID: "s1", Role: "follower", Address: "ssl:[2001:db8::1]:6643"}},
			want:    v1alpha1.DatabaseStatus{ClusterID: "one", Members: []v1alpha1.DatabaseMember{member("a", "", "follower")}},
		},
		{
			name:    "an outsider is not recorded",
			before:  v1alpha1.DatabaseStatus{ClusterID: "one", Members: []v1alpha1.DatabaseMember{member("a", "s1", "")}},
			reports: map[string]adminapi.Status{"b": report("one", "s2", "follower", 1)},
			want:    v1alpha1.DatabaseStatus{ClusterID: "one", Members: []v1alpha1.DatabaseMember{member("a", "s1", "")}},
		},
		{
			name:    "a member of another cluster is a problem",
			before:  v1alpha1.DatabaseStatus{ClusterID: "one", Members: []v1alpha1.DatabaseMember{member("b", "s2", "")}},
			reports: map[string]adminapi.Status{"b": report("two", "s2", "leader", 1)},
			want:    v1alpha1.DatabaseStatus{ClusterID: "one", Members: []v1alpha1.DatabaseMember{member("b", "s2", "")}},
			problem: "belongs to cluster two and not to one",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Record(&c.before, c.reports)
			if (err == nil) != (c.problem == "") || (err != nil && !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("the problem is %v; want %q", err, c.problem)
			}
			if diff := cmp.Diff(c.want, c.before); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
