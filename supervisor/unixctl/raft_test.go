// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package unixctl

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The texts are output of ovsdb-server 3.5.0.
func TestParseRaft(t *testing.T) {
	servers := []RaftServer{
		{ID: "f531", Address: "tcp:127.0.0.1:17643"}, {ID: "fc66", Address: "tcp:[::1]:17644"}, {ID: "1d06", Address: "tcp:[::1]:17645"},
	}
	followed := []RaftServer{
		{ID: "f531", Address: "tcp:127.0.0.1:17643", NextIndex: 2, MatchIndex: 4},
		{ID: "fc66", Address: "tcp:[::1]:17644", NextIndex: 5, MatchIndex: 4}, {ID: "1d06", Address: "tcp:[::1]:17645", NextIndex: 5, MatchIndex: 4},
	}
	const cluster = "0ce68d23-9177-4bed-90c7-fa658ca82f91"
	tests := []struct {
		file          string
		want          Raft
		connected     bool
		leaderAddress string
	}{
		{
			file: "leader",
			want: Raft{
				ClusterID: cluster, ServerID: "f531abed-5815-4448-a743-59ca6c33a786", Address: "tcp:127.0.0.1:17643",
				Status: "cluster member", Role: "leader", Term: 1, LastIndex: 4, Leader: "f531", Servers: followed,
				Vote: "f531", ElectionTimer: 1000, FirstIndex: 2, Inbound: []string{"fc66", "1d06"}, Outbound: []string{"fc66", "1d06"},
			},
			connected: true, leaderAddress: "tcp:127.0.0.1:17643",
		},
		{
			file: "follower",
			want: Raft{
				ClusterID: cluster, ServerID: "fc66bf91-2256-4e0c-bd55-4dfb62e51cbd", Address: "tcp:[::1]:17644",
				Status: "cluster member", Role: "follower", Term: 1, LastIndex: 4, Leader: "f531", Servers: servers,
				ElectionTimer: 1000, FirstIndex: 2, Inbound: []string{"f531", "1d06"}, Outbound: []string{"0000", "1d06"},
			},
			connected: true, leaderAddress: "tcp:127.0.0.1:17643",
		},
		{
			file: "candidate",
			want: Raft{
				ClusterID: cluster, ServerID: "fc66bf91-2256-4e0c-bd55-4dfb62e51cbd", Address: "tcp:[::1]:17644",
				Status: "disconnected from the cluster (election timeout)", Role: "candidate", Term: 1, LastIndex: 5, Servers: servers[:2],
				ElectionTimer: 1000, FirstIndex: 2, FailedOutbound: 1,
			},
		},
		{
			file: "joining",
			want: Raft{
				ServerID: "0f2cbf70-c4c3-4345-8411-a9fbacf3d335", Address: "tcp:127.0.0.1:17646", Status: "joining cluster", Role: "follower",
				ElectionTimer: 1000, FirstIndex: 1, FailedOutbound: 1,
			},
		},
	}
	for _, test := range tests {
		t.Run(test.file, func(t *testing.T) {
			text, err := os.ReadFile("testdata/" + test.file + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			got, err := ParseRaft(string(text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if got.Connected() != test.connected {
				t.Errorf("Connected() = %t", got.Connected())
			}
			if got.LeaderAddress() != test.leaderAddress {
				t.Errorf("LeaderAddress() = %q, want %q", got.LeaderAddress(), test.leaderAddress)
			}
		})
	}
}

func TestParseRaftRefusesOtherText(t *testing.T) {
	for _, text := range []string{"", "1.2.3", "Term: many\n"} {
		if got, err := ParseRaft(text); err == nil {
			t.Errorf("ParseRaft(%q) = %+v", text, got)
		}
	}
}
