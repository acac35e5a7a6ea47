// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nbtest runs a real ovsdb-server with the northbound schema for tests. Tests can act as another client of the same
// database, and inject faults between an engine and the server.
package nbtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kiln-net/kiln/internal/ovsdb/schema"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// Server is one server of a northbound database, or of a Northd's southbound one, on a Unix socket.
type Server struct {
	t       testing.TB
	name    string // of the database
	dir     string
	process *daemontest.Daemon
}

// Start creates an empty northbound database and serves it until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	return create(newServer(t, database, schema.Northbound))
}

func create(s *Server) *Server {
	s.t.Helper()
	s.tool("create", s.database(), s.schema())
	s.start()
	return s
}

func newServer(t testing.TB, name string, schema []byte) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "nb") // t.TempDir can exceed the length of a socket's path
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, name: name, dir: dir}
	t.Cleanup(func() {
		s.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(s.schema(), schema, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// tool runs ovsdb-tool.
func (s *Server) tool(args ...string) {
	s.t.Helper()
	if out, err := s.program("usr/bin/ovsdb-tool", args...).CombinedOutput(); err != nil {
		s.t.Fatalf("ovsdb-tool %s: %v\n%s", args[0], err, out)
	}
}

// program returns a command that runs a program of the cached root file system with the libraries of that file system.
func (s *Server) program(path string, args ...string) *exec.Cmd {
	s.t.Helper()
	command, err := prepared.Program(path)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(command[0], append(command[1:], args...)...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+s.dir, "OVS_LOGDIR="+s.dir, "OVN_RUNDIR="+s.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (s *Server) database() string { return filepath.Join(s.dir, "ovn.db") }
func (s *Server) schema() string   { return filepath.Join(s.dir, "ovn.ovsschema") }
func (s *Server) socket() string   { return filepath.Join(s.dir, "ovn.sock") }

// Endpoint is the server's address, in OVSDB's form.
func (s *Server) Endpoint() string { return "unix:" + s.socket() }

func (s *Server) start() {
	s.t.Helper()
	command := s.program("usr/sbin/ovsdb-server", "--remote=punix:"+s.socket(),
		"--unixctl="+filepath.Join(s.dir, "ovn.ctl"), "-vconsole:warn", "-vfile:off", "-vsyslog:off", s.database())
	s.process = daemontest.Start(s.t, "ovsdb-server of "+s.name, filepath.Join(s.dir, "ovsdb-server.log"), command)
	s.await("listen", func() bool {
		conn, err := net.Dial("unix", s.socket())
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	})
}

// Stop kills the server; its database stays.
func (s *Server) Stop() {
	if s.process == nil {
		return
	}
	s.process.Kill()
	s.process = nil
}

// Restart kills the server and serves the same database again.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.start()
}

// Convert converts the served database to its schema with a change. The server disconnects clients that did not request schema
// changes (ovsdb-server(7), section 4.1.24).
func (s *Server) Convert(change func(tables map[string]any)) {
	s.t.Helper()
	text, err := os.ReadFile(s.schema())
	if err != nil {
		s.t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	schema := map[string]any{}
	if err := decoder.Decode(&schema); err != nil {
		s.t.Fatal(err)
	}
	change(schema["tables"].(map[string]any))
	schema["version"] = "99.0.0"
	delete(schema, "cksum")
	if text, err = json.Marshal(schema); err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(s.dir, "newer.ovsschema")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if out, err := s.program("usr/bin/ovsdb-client", "--timeout=30", "convert", s.Endpoint(), path).CombinedOutput(); err != nil {
		s.t.Fatalf("convert: %v: %s", err, out)
	}
}

// lastID numbers the requests of all tests.
var lastID atomic.Int64

// call sends one request on a new connection, and fails the test without a result.
func (s *Server) call(method string, params ...any) json.RawMessage {
	s.t.Helper()
	result, err := s.request(method, params...)
	if err != nil {
		s.t.Fatal(err)
	}
	return result
}

// request sends one request on a new connection.
func (s *Server) request(method string, params ...any) (json.RawMessage, error) {
	conn, err := net.Dial("unix", s.socket())
	if err != nil {
		return nil, fmt.Errorf("dial ovsdb-server: %w", err)
	}
	defer conn.Close()
	id := lastID.Add(1)
	request := map[string]any{"method": method, "params": params, "id": id}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	decoder := json.NewDecoder(conn)
	for {
		var reply struct {
			ID     any
			Result json.RawMessage
			Error  any
		}
		if err := decoder.Decode(&reply); err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		if reply.ID != float64(id) {
			continue
		}
		if reply.Error != nil {
			return nil, fmt.Errorf("%s: %v", method, reply.Error)
		}
		return reply.Result, nil
	}
}
