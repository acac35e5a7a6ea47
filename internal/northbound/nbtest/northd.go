// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/internal/ovsdb/schema"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
)

// Northd is an ovn-northd between a northbound database and its own southbound database.
type Northd struct {
	nb         *Server
	Southbound *Server
	process    *daemontest.Daemon
	chassis    int // number of chassis that were started
}

// Northd starts an ovn-northd that runs until the test ends.
func (s *Server) Northd() *Northd {
	s.t.Helper()
	n := &Northd{nb: s, Southbound: create(newServer(s.t, "OVN_Southbound", schema.Southbound))}
	command := s.program("usr/bin/ovn-northd", "--ovnnb-db="+s.Endpoint(), "--ovnsb-db="+n.Southbound.Endpoint(),
		"--unixctl="+n.Control(), "-vconsole:warn", "-vfile:off", "-vsyslog:off")
	n.process = daemontest.Start(s.t, "ovn-northd", filepath.Join(n.Southbound.dir, "northd.log"), command)
	s.t.Cleanup(n.Stop)
	n.Await("a first row", func(sb *Server) bool { return len(sb.Rows("SB_Global")) > 0 })
	return n
}

// Control is the path of the control socket.
func (n *Northd) Control() string { return filepath.Join(n.Southbound.dir, "northd.ctl") }

// Settled waits until ovn-northd has processed all earlier changes of the northbound database, and the notifications of its own changes of
// the southbound database. A notification can cause a full computation, too: that of a new Datapath_Binding always does. After
// Settled, only another change increases the counts of Recomputes.
func (n *Northd) Settled() {
	n.nb.t.Helper()
	// When ovn-northd returns a sequence number, it has received the notifications of its earlier transactions. When it returns the next
	// number, it has processed them. Only a full computation can write rows whose notifications cause another one.
	for before := -1; ; {
		want := n.nb.nextConfig()
		n.nb.await("receive the sequence number from ovn-northd", func() bool { return n.nb.global()["sb_cfg"] == want })
		after := n.Recomputes("northd") + n.Recomputes("lflow")
		if after == before {
			return
		}
		before = after
	}
}

// nextConfig increments the sequence number of the database and returns it. ovn-northd and chassis return the number when they have applied all
// earlier changes (ovn-nb(5), NB_Global nb_cfg).
func (s *Server) nextConfig() (number any) {
	s.t.Helper()
	s.Transact(Op{"op": "mutate", "table": "NB_Global", "where": []any{}, "mutations": []any{[]any{"nb_cfg", "+=", 1}}})
	return s.global()["nb_cfg"]
}

// global returns the only row of NB_Global.
func (s *Server) global() Row {
	s.t.Helper()
	for _, row := range s.Rows("NB_Global") {
		return row
	}
	s.t.Fatal("the northbound database has no row of NB_Global")
	return nil
}

// Recomputes returns how many times northd recomputed a node of its incremental engine in full (ovn-northd(8), inc-engine).
func (n *Northd) Recomputes(node string) int {
	n.nb.t.Helper()
	out, err := n.nb.program("usr/bin/ovn-appctl", "-t", n.Control(), "inc-engine/show-stats", node, "recompute").CombinedOutput()
	count, convErr := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || convErr != nil {
		n.nb.t.Fatalf("inc-engine/show-stats %s: %v\n%s", node, err, out)
	}
	return count
}

// Recompute makes ovn-northd compute everything in full.
func (n *Northd) Recompute() {
	n.nb.t.Helper()
	if out, err := n.nb.program("usr/bin/ovn-appctl", "-t", n.Control(), "inc-engine/recompute").CombinedOutput(); err != nil {
		n.nb.t.Fatalf("inc-engine/recompute: %v\n%s", err, out)
	}
}

// Await waits until done returns true for the southbound database.
func (n *Northd) Await(what string, done func(southbound *Server) bool) {
	n.nb.t.Helper()
	n.nb.await("bring "+what+" to the southbound database", func() bool { return done(n.Southbound) })
}

// PID is the process ID of ovn-northd.
func (n *Northd) PID() int { return n.process.PID() }

// Stop kills ovn-northd and its southbound database.
func (n *Northd) Stop() {
	if n.process != nil {
		n.process.Kill()
		n.process = nil
	}
	n.Southbound.Stop()
}

// Trace returns the output of ovn-trace(8) for a packet. Options are ovn-trace's, like `--ct=new`.
func (n *Northd) Trace(datapath, packet string, options ...string) string {
	n.nb.t.Helper()
	args := append([]string{"--db=" + n.Southbound.Endpoint(), "--minimal"}, options...)
	out, err := n.nb.program("usr/bin/ovn-trace", append(args, datapath, packet)...).CombinedOutput()
	if err != nil {
		n.nb.t.Fatalf("ovn-trace %s: %v\n%s", packet, err, out)
	}
	return string(out)
}
