// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package startup

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	file := func(id string) *File {
		return &File{Path: "/etc/ovn/ovnnb_db.db", ClusterID: id, ServerID: "s1"}
	}
	recorded := func(server string, since *metav1.Time) v1alpha1.DatabaseStatus {
		return v1alpha1.DatabaseStatus{ClusterID: "c", BootstrapNode: node, Members: []v1alpha1.DatabaseMember{
			{Node: node, Address: "192.0.2.1", ServerID: server, Since: since}, members[1],
		}}
	}
	now := metav1.Unix(1000, 0)
	through := []netip.Addr{netip.MustParseAddr("192.0.2.2")}

	recovering := func(on string, source v1alpha1.RecoverySource) v1alpha1.DatabaseStatus {
		return v1alpha1.DatabaseStatus{BootstrapNode: on, Members: members, Since: &now, Recovery: &v1alpha1.RecoveryStatus{
			Phase: v1alpha1.RecoveryCreating, Source: source, Backup: "b",
		}}
	}

	tests := []struct {
		name   string
		file   *File
		status v1alpha1.DatabaseStatus
		want   Plan
		reason string // part of the reason to wait
		err    string // part of the error
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
			want:   Plan{Step: Create},
		},
		{
			name:   "a cluster is recorded: join it through members that serve",
			status: v1alpha1.DatabaseStatus{ClusterID: "c", BootstrapNode: node, Members: members},
			want:   Plan{Step: Join, ClusterID: "c", Remotes: []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
		},
		{
			name:   "a cluster is recorded and no member is known to serve: join through any, never through itself",
			status: v1alpha1.DatabaseStatus{ClusterID: "c", Members: []v1alpha1.DatabaseMember{members[0], members[2]}},
			want:   Plan{Step: Join, ClusterID: "c", Remotes: []netip.Addr{netip.MustParseAddr("2001:db8::3")}},
		},
		{
			name:   "the only member's file is missing: never create a second cluster",
			status: v1alpha1.DatabaseStatus{ClusterID: "c", BootstrapNode: node, Members: members[:1]},
			reason: "put the file back",
		},
		{
			name:   "a file, and its server is recorded: start",
			file:   file("c"),
			status: recorded("s1", nil),
			want:   Plan{Step: Start},
		},
		{
			name:   "a file that has just joined and is not recorded yet: start",
			file:   &File{ClusterID: "c", ServerID: "s1", Since: now.Time},
			status: recorded("", &now),
			want:   Plan{Step: Start},
		},
		{
			name:   "no member belongs here: wait",
			file:   file("c"),
			status: v1alpha1.DatabaseStatus{ClusterID: "c", Members: members[1:]},
			reason: "is to hold no member",
		},
		{
			name:   "a file that has not finished joining: start, it continues",
			file:   file(""),
			status: recorded("", nil),
			want:   Plan{Step: Start},
		},
		{
			name:   "this node created the file and the ID is not recorded yet: start",
			file:   file("c"),
			status: v1alpha1.DatabaseStatus{BootstrapNode: node},
			want:   Plan{Step: Start},
		},
		{
			name:   "an old file, while another node creates the cluster: wait, it may be foreign",
			file:   file("old"),
			status: v1alpha1.DatabaseStatus{BootstrapNode: "cp-2"},
			reason: "is here already",
		},
		{
			name:   "a file of another cluster, and this member is to join: set it aside",
			file:   file("old"),
			status: recorded("", &now),
			want:   Plan{Step: Rejoin, ClusterID: "c", Remotes: through, Since: now.Time},
			reason: "belongs to cluster old, but the OVNCluster's is c",
		},
		{
			name:   "a file of another cluster, and this member has joined: it has to be kicked first",
			file:   file("old"),
			status: recorded("s1", nil),
			want:   Plan{Rejoin: true},
			reason: "belongs to cluster old",
		},
		{
			name:   "a file of an earlier membership: set it aside",
			file:   &File{ClusterID: "c", ServerID: "s1", Since: now.Add(-time.Hour)},
			status: recorded("", &now),
			want:   Plan{Step: Rejoin, ClusterID: "c", Remotes: through, Since: now.Time},
			reason: "earlier membership",
		},
		{
			name:   "a file of another server: kicked first",
			file:   file("c"),
			status: recorded("s2", nil),
			want:   Plan{Rejoin: true},
			reason: "is of server s1, but s2 is recorded",
		},
		{
			name:   "a file that cannot be read: kicked first",
			file:   &File{Unusable: errors.New("syntax error")},
			status: recorded("s1", nil),
			want:   Plan{Rejoin: true},
			reason: "syntax error",
		},
		{
			name:   "no file, and this member has joined: kicked first",
			status: recorded("s1", nil),
			want:   Plan{Rejoin: true},
			reason: "no database file is here",
		},
		{
			name:   "this node rebuilds the database from its file",
			file:   file("c"),
			status: recovering(node, v1alpha1.RecoverMember),
			want:   Plan{Step: Recover, Since: now.Time, Source: v1alpha1.RecoverMember, Backup: "b"},
		},
		{
			name:   "it has done so: start",
			file:   &File{ClusterID: "new", ServerID: "s1", Since: now.Time},
			status: recovering(node, v1alpha1.RecoverMember),
			want:   Plan{Step: Start},
		},
		{
			name:   "its result cannot be read: make it again",
			file:   &File{Since: now.Time, Unusable: errors.New("syntax error")},
			status: recovering(node, v1alpha1.RecoverBackup),
			want:   Plan{Step: Recover, Since: now.Time, Source: v1alpha1.RecoverBackup, Backup: "b"},
		},
		{
			name:   "without a file there is nothing to make it from",
			status: recovering(node, v1alpha1.RecoverMember),
			reason: "no database file is here to make the database from: set spec.central.recovery.node",
		},
		{
			name:   "nor from one that cannot be read",
			file:   &File{Unusable: errors.New("syntax error")},
			status: recovering(node, v1alpha1.RecoverMember),
			reason: "syntax error: set spec.central.recovery.node",
		},
		{
			name:   "it can be made from an intact file of a node that has another address now",
			file:   &File{ClusterID: "c", Unusable: fmt.Errorf("f: %w", ErrMoved)},
			status: recovering(node, v1alpha1.RecoverMember),
			want:   Plan{Step: Recover, Since: now.Time, Source: v1alpha1.RecoverMember, Backup: "b"},
		},
		{
			name:   "without a recovery such a file does not serve",
			file:   &File{ClusterID: "c", ServerID: "s1", Unusable: fmt.Errorf("f: %w", ErrMoved)},
			status: recorded("s1", nil),
			want:   Plan{Rejoin: true},
			reason: "cannot change its address",
		},
		{
			name:   "the reason says how to recover from such a file",
			file:   &File{ClusterID: "c", ServerID: "s1", Unusable: fmt.Errorf("f: %w", ErrMoved)},
			status: recorded("s1", nil),
			want:   Plan{Rejoin: true},
			reason: "set spec.central.recovery with source Member and node cp-1",
		},
		{
			name:   "before there is a database such a file is an error that says what to do",
			file:   &File{ClusterID: "c", ServerID: "s1", Unusable: fmt.Errorf("f: %w", ErrMoved)},
			status: v1alpha1.DatabaseStatus{BootstrapNode: node},
			err:    "give node cp-1 its former address, or move the file away",
		},
		{
			name:   "but it can be made from nothing",
			status: recovering(node, v1alpha1.RecoverRebuild),
			want:   Plan{Step: Recover, Since: now.Time, Source: v1alpha1.RecoverRebuild, Backup: "b"},
		},
		{
			name:   "another node rebuilds the database: wait, whatever is here",
			file:   file("c"),
			status: recovering("cp-2", v1alpha1.RecoverMember),
			reason: "node cp-2 re-creates",
		},
		{
			name:   "the node that creates the cluster has a file that cannot be read: a person decides",
			file:   &File{Unusable: errors.New("syntax error")},
			status: v1alpha1.DatabaseStatus{BootstrapNode: node},
			err:    "syntax error",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Decide(test.file, test.status, node, self)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got error %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(got.Reason, test.reason) || (test.reason == "") != (got.Reason == "") {
				t.Errorf("reason %q, want one with %q", got.Reason, test.reason)
			}
			got.Reason = ""
			if diff := cmp.Diff(test.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		})
	}
}
