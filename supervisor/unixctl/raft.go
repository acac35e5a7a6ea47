// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package unixctl

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Raft is one member's view of its cluster, from ovsdb-server's cluster/status.
type Raft struct {
	// ClusterID and ServerID are UUIDs; ClusterID is empty while a joining member has not learned it.
	ClusterID, ServerID string
	Address             string
	// Status is "cluster member", or why the server is not one at the moment: "joining cluster", "disconnected from the cluster
	// (election timeout)", …
	Status string
	// Role is leader, follower or candidate.
	Role string
	Term int64
	// LastIndex is the index of the last entry in the member's log.
	LastIndex int64
	// Leader is the first four digits of the leader's server ID; empty when there is none.
	Leader string
	// Vote is the first four digits of the ID of the server that got this member's vote in the term; empty when it did not vote.
	Vote string
	// ElectionTimer in milliseconds.
	ElectionTimer int64
	// FirstIndex is the index of the first entry in the member's log.
	FirstIndex int64
	// NotCommitted and NotApplied are the numbers of entries that are not committed, and not applied, by this member.
	NotCommitted, NotApplied int64
	// Inbound and Outbound are the IDs of the servers with an established connection from and to this member. FailedInbound and
	// FailedOutbound are the numbers of connections that are not established.
	Inbound, Outbound             []string
	FailedInbound, FailedOutbound int
	// Servers are all members, this one included.
	Servers []RaftServer
}

// RaftServer is an entry of the list of servers in cluster/status.
type RaftServer struct {
	// ID is the first four digits of the server ID.
	ID, Address string
	// NextIndex and MatchIndex are reported by a leader only: the next entry to send to the server, and the last entry that it has.
	NextIndex, MatchIndex int64
}

// Connected reports whether the server is a member of the cluster and knows a leader.
func (r Raft) Connected() bool { return r.Status == "cluster member" && r.Leader != "" }

// LeaderAddress is the leader's address; empty when there is none.
func (r Raft) LeaderAddress() string {
	for _, s := range r.Servers {
		if s.ID == r.Leader {
			return s.Address
		}
	}
	return ""
}

var (
	// `2076 (2076e07a-7737-4446-8ae1-b1aac9c8dd5e)`
	longID = regexp.MustCompile(`^[0-9a-f]{4} \(([0-9a-f-]{36})\)$`)
	// `    2076 (2076 at ssl:127.0.0.1:16644) (self) next_index=2 match_index=2`
	serverLine = regexp.MustCompile(`^\s+([0-9a-f]{4}) \([0-9a-f]{4} at (\S+)\)(?:.*next_index=(\d+) match_index=(\d+))?`)
	// `<-fc66 ->1d06 (->0000)`
	connection = regexp.MustCompile(`(\()?(<-|->)([0-9a-f]{4})`)
)

// ParseRaft parses the text output of `cluster/status`; there is no structured output.
func ParseRaft(text string) (Raft, error) {
	var r Raft
	inServers := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if inServers {
			if m := serverLine.FindStringSubmatch(line); m != nil {
				r.Servers = append(r.Servers, RaftServer{ID: m[1], Address: m[2], NextIndex: number(m[3]), MatchIndex: number(m[4])})
			}
			continue
		}
		name, value, found := strings.Cut(line, ":")
		if !found || strings.HasPrefix(line, " ") {
			continue
		}
		inServers = name == "Servers"
		if err := r.set(name, strings.TrimSpace(value)); err != nil {
			return r, err
		}
	}
	if r.ServerID == "" || r.Status == "" {
		return r, errors.New("cluster/status holds no server ID or status: is the database clustered?")
	}
	return r, nil
}

func (r *Raft) set(name, value string) error {
	switch name {
	case "Cluster ID":
		if m := longID.FindStringSubmatch(value); m != nil { // otherwise "not yet known"
			r.ClusterID = m[1]
		}
	case "Server ID":
		if m := longID.FindStringSubmatch(value); m != nil {
			r.ServerID = m[1]
		}
	case "Address":
		r.Address = value
	case "Status":
		r.Status = value
	case "Log":
		return r.setLog(value)
	case "Role":
		r.Role = value
	case "Leader":
		r.Leader = r.short(value)
	case "Vote":
		r.Vote = r.short(value)
	case "Election timer":
		r.ElectionTimer = number(value)
	case "Entries not yet committed":
		r.NotCommitted = number(value)
	case "Entries not yet applied":
		r.NotApplied = number(value)
	case "Connections":
		r.setConnections(value)
	case "Term":
		term, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return fmt.Errorf("term of cluster/status: %w", err)
		}
		r.Term = term
	}
	return nil
}

// short returns the first four digits of the server ID in a value of Leader or Vote.
func (r *Raft) short(value string) string {
	switch {
	case value == "unknown":
		return ""
	case value == "self" && len(r.ServerID) >= 4:
		return r.ServerID[:4]
	}
	return value
}

// setLog parses the range of log entries, `[2, 5]`: the second number is the index of the next entry.
func (r *Raft) setLog(value string) error {
	first, next, _ := strings.Cut(strings.Trim(value, "[]"), ", ")
	end, err := strconv.ParseInt(next, 10, 64)
	if err != nil {
		return fmt.Errorf("log of cluster/status: %w", err)
	}
	r.FirstIndex, r.LastIndex = number(first), end-1
	return nil
}

// setConnections parses the connections to other servers. Those in parentheses are not established.
func (r *Raft) setConnections(value string) {
	for _, m := range connection.FindAllStringSubmatch(value, -1) {
		failed, inbound := m[1] != "", m[2] == "<-"
		switch {
		case failed && inbound:
			r.FailedInbound++
		case failed:
			r.FailedOutbound++
		case inbound:
			r.Inbound = append(r.Inbound, m[3])
		default:
			r.Outbound = append(r.Outbound, m[3])
		}
	}
}

// number parses a decimal number; 0 for other text, because figures for metrics must not make the parts fail on which members depend.
func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}
