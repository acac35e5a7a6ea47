// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/ovsdb/schema"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// StartCluster creates an empty northbound database and serves it from a Raft cluster of that many members until the test ends.
func StartCluster(t testing.TB, members int) []*Server {
	t.Helper()
	servers := make([]*Server, members)
	for i := range servers {
		s := newServer(t, database, schema.Northbound)
		servers[i] = s
		if i == 0 {
			s.tool("create-cluster", s.database(), s.schema(), s.raft())
		} else {
			s.tool("join-cluster", s.database(), database, s.raft(), servers[0].raft())
		}
		s.start()
		s.awaitElection("join the cluster", func() bool { return s.member().Connected })
	}
	return servers
}

// Leader waits for an election and returns the member that leads.
func Leader(servers []*Server) *Server {
	var leader *Server
	servers[0].awaitElection("elect a leader", func() bool {
		for _, s := range servers {
			if s.process != nil && s.member().Leader {
				leader = s
			}
		}
		return leader != nil
	})
	return leader
}

func (s *Server) raft() string { return "unix:" + filepath.Join(s.dir, "raft.sock") }

// member returns the server's view of its cluster state (_Server schema, ovsdb-server(5)). It is the zero value when the server ends the
// connection, which it does with all connections when it joins or leaves the cluster.
func (s *Server) member() (m struct{ Leader, Connected bool }) {
	s.t.Helper()
	var results []struct {
		Rows []struct{ Leader, Connected bool }
	}
	raw, err := s.request("transact", "_Server", Op{"op": "select", "table": "Database", "where": Where("name", "==", database)})
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return m
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &results); err != nil {
		s.t.Fatal(err)
	}
	if len(results) == 1 && len(results[0].Rows) == 1 {
		m = results[0].Rows[0]
	}
	return m
}

// electionBase is the time for a member to elect a leader or to join one: one or two election timers of a second, and elections
// may repeat.
const electionBase = 15 * time.Second

func (s *Server) awaitElection(what string, done func() bool) {
	s.t.Helper()
	eventually.Wait{For: "the server of " + s.name + " must " + what, Pause: 10 * time.Millisecond, Base: electionBase}.Holds(s.t, done)
}

// await polls until the server has done an action of its own. The server sends no notification of it.
func (s *Server) await(what string, done func() bool) {
	s.t.Helper()
	eventually.Wait{For: "the server of " + s.name + " must " + what, Pause: 10 * time.Millisecond}.Holds(s.t, done)
}
