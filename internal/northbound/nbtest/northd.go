// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/internal/daemontest"
	"github.com/kiln-net/kiln/internal/ovsdb/schema"
)

// Northd is an ovn-northd between a northbound database and its own southbound database.
type Northd struct {
	nb         *Server
	Southbound *Server
	process    *daemontest.Daemon
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
