// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// Figures of a member.
var (
	statusDesc = prometheus.NewDesc("kube_ovn_ovn_status", "State of a daemon: 1 leader or active, 2 follower or standby, 0 not serving.",
		[]string{"hostname", "component"}, nil)
	databaseDesc = prometheus.NewDesc("kube_ovn_db_status", "1 while a member is part of the cluster and knows a leader, otherwise 0.", []string{"hostname", "db_name"}, nil)
	fileDesc     = prometheus.NewDesc("kube_ovn_db_file_size_bytes", "Size of a database file.", []string{"hostname", "db_name"}, nil)
	enabledDesc  = prometheus.NewDesc("kube_ovn_cluster_enabled", "1: databases are clustered.", []string{"hostname", "db_name"}, nil)
	usageDesc    = prometheus.NewDesc("kiln_ovsdb_usage", "Numbers of things for which ovsdb-server uses memory, such as sessions and entries of the Raft log.",
		[]string{"hostname", "db_name", "item"}, nil)
)

// Figures of Raft, from cluster/status.
var (
	roleDesc         = prometheus.NewDesc("kube_ovn_cluster_role", "Role of a member; always 1.", []string{"hostname", "db_name", "server_id", "cluster_id", "server_role"}, nil)
	memberDesc       = prometheus.NewDesc("kube_ovn_cluster_status", "Status of a member; always 1.", []string{"hostname", "db_name", "server_id", "cluster_id", "server_status"}, nil)
	termDesc         = prometheus.NewDesc("kube_ovn_cluster_term", "Raft term that a member knows.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	leaderDesc       = prometheus.NewDesc("kube_ovn_cluster_leader_self", "1 if a member considers itself the leader, otherwise 0.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	voteDesc         = prometheus.NewDesc("kube_ovn_cluster_vote_self", "1 if a member voted for itself, otherwise 0.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	timerDesc        = prometheus.NewDesc("kube_ovn_cluster_election_timer", "Election timer in milliseconds.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	notCommittedDesc = prometheus.NewDesc("kube_ovn_cluster_log_not_committed", "Log entries that a member has not committed.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	notAppliedDesc   = prometheus.NewDesc("kube_ovn_cluster_log_not_applied", "Log entries that a member has not applied.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	firstDesc        = prometheus.NewDesc("kube_ovn_cluster_log_index_start", "Index of the first entry in a member's log.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	nextDesc         = prometheus.NewDesc("kube_ovn_cluster_log_index_next", "Index of the next entry in a member's log.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	inboundDesc      = prometheus.NewDesc("kube_ovn_cluster_inbound_connections_total", "Established connections from other members.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	outboundDesc     = prometheus.NewDesc("kube_ovn_cluster_outbound_connections_total", "Established connections to other members.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	inboundErrDesc   = prometheus.NewDesc("kube_ovn_cluster_inbound_connections_error_total", "Connections from other members that are not established.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	outboundErrDesc  = prometheus.NewDesc("kube_ovn_cluster_outbound_connections_error_total", "Connections to other members that are not established.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	peersDesc        = prometheus.NewDesc("kube_ovn_cluster_peer_count", "Other members of the cluster.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	ownNextDesc      = prometheus.NewDesc("kube_ovn_cluster_next_index", "Next index of the leader itself.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	ownMatchDesc     = prometheus.NewDesc("kube_ovn_cluster_match_index", "Match index of the leader itself.", []string{"hostname", "db_name", "server_id", "cluster_id"}, nil)
	peerInDesc       = prometheus.NewDesc("kube_ovn_cluster_inbound_peer_connected", "A connection from another member; always 1.",
		[]string{"hostname", "db_name", "server_id", "cluster_id", "peer_id", "peer_address"}, nil)
	peerOutDesc = prometheus.NewDesc("kube_ovn_cluster_outbound_peer_connected", "A connection to another member; always 1.",
		[]string{"hostname", "db_name", "server_id", "cluster_id", "peer_id", "peer_address"}, nil)
	peerNextDesc  = prometheus.NewDesc("kube_ovn_cluster_peer_next_index", "Index of the next entry that the leader sends to a member.", []string{"hostname", "db_name", "server_id", "cluster_id", "peer_id"}, nil)
	peerMatchDesc = prometheus.NewDesc("kube_ovn_cluster_peer_match_index", "Index of the last entry that a member has, as the leader knows.", []string{"hostname", "db_name", "server_id", "cluster_id", "peer_id"}, nil)
)

// collect queries the server. Figures of the database's content are those of the leader.
func (m *member) collect(ctx context.Context, f *supervisor.Figures) {
	o := m.options
	host, name := o.Node, o.Database.Name
	f.Gauge(enabledDesc, 1, host, name)
	supervisor.CollectCertificate(f, host, o.Database.ServerName, filepath.Join(o.TLSDir, "tls.crt"))
	if info, err := os.Stat(newFiles(o).path); err == nil {
		f.Gauge(fileDesc, float64(info.Size()), host, name)
	}
	raft, err := m.raft(ctx)
	if err != nil {
		o.Log.V(1).Info("no figures for metrics", "reason", err.Error())
		f.Gauge(statusDesc, 0, host, o.Database.component())
		f.Gauge(databaseDesc, 0, host, name)
		return
	}
	f.Gauge(statusDesc, health(raft), host, o.Database.component())
	f.Present(databaseDesc, raft.Connected(), host, name)
	collectRaft(f, raft, host, name)
	if text, err := m.call(ctx, "memory/show"); err == nil {
		collectUsage(f, text, host, name)
	}
	if raft.Role == adminapi.RoleLeader {
		if err := m.collectContent(ctx, f); err != nil {
			o.Log.V(1).Info("no figures of the content for metrics", "reason", err.Error())
		}
	}
}

func (m *member) raft(ctx context.Context) (unixctl.Raft, error) {
	text, err := m.call(ctx, "cluster/status", m.options.Database.Name)
	if err != nil {
		return unixctl.Raft{}, err
	}
	return unixctl.ParseRaft(text)
}

// component returns the value of the label component, which is Kube-OVN's.
func (d Database) component() string {
	if d.Name == Northbound.Name {
		return "ovsdb-server-northbound"
	}
	return "ovsdb-server-southbound"
}

func health(r unixctl.Raft) float64 {
	switch {
	case !r.Connected():
		return 0
	case r.Role == adminapi.RoleLeader:
		return 1
	}
	return 2
}

func collectRaft(f *supervisor.Figures, r unixctl.Raft, host, name string) {
	self := r.ServerID[:4]
	own := []string{host, name, r.ServerID, r.ClusterID}
	f.Gauge(roleDesc, 1, append(own, r.Role)...)
	f.Gauge(memberDesc, 1, append(own, r.Status)...)
	f.Present(leaderDesc, r.Leader == self, own...)
	f.Present(voteDesc, r.Vote == self, own...)
	for desc, value := range map[*prometheus.Desc]int64{
		termDesc: r.Term, timerDesc: r.ElectionTimer, notCommittedDesc: r.NotCommitted, notAppliedDesc: r.NotApplied,
		firstDesc: r.FirstIndex, nextDesc: r.LastIndex + 1,
		inboundDesc: int64(len(r.Inbound)), outboundDesc: int64(len(r.Outbound)),
		inboundErrDesc: int64(r.FailedInbound), outboundErrDesc: int64(r.FailedOutbound),
		peersDesc: int64(max(0, len(r.Servers)-1)),
	} {
		f.Gauge(desc, float64(value), own...)
	}
	addresses := map[string]string{}
	for _, s := range r.Servers {
		addresses[s.ID] = s.Address
		if r.Role != adminapi.RoleLeader {
			continue
		}
		next, match, labels := peerNextDesc, peerMatchDesc, append(own, s.ID)
		if s.ID == self {
			next, match, labels = ownNextDesc, ownMatchDesc, own
		}
		f.Gauge(next, float64(s.NextIndex), labels...)
		f.Gauge(match, float64(s.MatchIndex), labels...)
	}
	for desc, peers := range map[*prometheus.Desc][]string{peerInDesc: r.Inbound, peerOutDesc: r.Outbound} {
		for _, id := range peers {
			if address, is := addresses[id]; is { // otherwise 0000: a member that has not been identified
				f.Gauge(desc, 1, append(own, id, address)...)
			}
		}
	}
}

// collectUsage parses the output of memory/show (ovs-appctl(8)): `cells:290 monitors:2 raft-log:5 sessions:3`.
func collectUsage(f *supervisor.Figures, text, host, name string) {
	for _, field := range strings.Fields(text) {
		item, number, _ := strings.Cut(field, ":")
		if value, ok := unixctl.ParseNumber(number); ok {
			f.Gauge(usageDesc, value, host, name, item)
		}
	}
}
