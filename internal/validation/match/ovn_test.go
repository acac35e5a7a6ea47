// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kiln-net/kiln/internal/ovsdb/schema"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// TestOVNAgrees lets ovn-trace parse the same matches as logical flows. It must accept the good ones and reject the bad ones
// with "parsing expression failed".
func TestOVNAgrees(t *testing.T) {
	o := startOVN(t)
	matches := append([]string(nil), good...)
	for _, tt := range append(bad, strict...) {
		if tt.match != "" && !strings.Contains(tt.match, "\x00") { // OVSDB strings cannot contain it
			matches = append(matches, tt.match)
		}
	}
	refused := o.refuses(matches)
	for _, text := range good {
		if why, ok := refused[text]; ok {
			t.Errorf("OVN refuses %q, which is taken here: %s", text, why)
		}
	}
	for _, tt := range bad {
		if _, ok := refused[tt.match]; !ok && strings.TrimSpace(tt.match) != "" && !strings.Contains(tt.match, "\x00") {
			t.Errorf("OVN takes %q, which is refused here: %s", tt.match, tt.message)
		}
	}
	for _, tt := range strict {
		if why, ok := refused[tt.match]; ok {
			t.Errorf("OVN refuses %q, too: %s", tt.match, why)
		}
	}
}

// ovn is a southbound database server.
type ovn struct {
	*testing.T
	dir string
}

// startOVN serves an empty southbound database until the test ends.
func startOVN(t *testing.T) *ovn {
	o := &ovn{T: t, dir: t.TempDir()}
	schemaFile, database := filepath.Join(o.dir, "schema"), filepath.Join(o.dir, "db")
	if err := os.WriteFile(schemaFile, schema.Southbound, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := o.program("usr/bin/ovsdb-tool", "create", database, schemaFile).CombinedOutput(); err != nil {
		t.Fatalf("ovsdb-tool: %v\n%s", err, out)
	}
	server := o.program("usr/sbin/ovsdb-server", "--remote=punix:"+o.socket(), "--unixctl="+filepath.Join(o.dir, "ctl"), "-vconsole:warn", database)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	return o
}

func (o *ovn) socket() string { return filepath.Join(o.dir, "s") }

// program returns a command that runs a program of the cached root file system with the libraries of that file system.
func (o *ovn) program(path string, args ...string) *exec.Cmd {
	o.Helper()
	command, err := prepared.Program(path)
	if err != nil {
		o.Fatal(err)
	}
	cmd := exec.Command(command[0], append(command[1:], args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// refuses returns OVN's error messages for the matches that it rejects.
func (o *ovn) refuses(matches []string) map[string]string {
	o.Helper()
	insert := func(table string, row map[string]any) any {
		return map[string]any{"op": "insert", "table": table, "row": row}
	}
	datapath := insert("Datapath_Binding", map[string]any{"tunnel_key": 1, "external_ids": []any{"map", [][]string{{"name", "sw"}, {"logical-switch", "sw"}}}})
	datapath.(map[string]any)["uuid-name"] = "dp"
	group := func(name string) any {
		return insert("Port_Group", map[string]any{"name": name, "ports": "p"})
	}
	set := func(name string) any {
		return insert("Address_Set", map[string]any{"name": name, "addresses": "10.0.0.9"})
	}
	operations := []any{
		"OVN_Southbound", datapath, set("set"), set("r"), set("s"), set("a.set_1"), group("1_group"), group("1_a"), group("1_b"),
		insert("Port_Binding", map[string]any{"logical_port": "p", "datapath": []string{"named-uuid", "dp"}, "tunnel_key": 1}),
	}
	for i, text := range matches {
		operations = append(operations, insert("Logical_Flow", map[string]any{
			"logical_datapath": []string{"named-uuid", "dp"}, "pipeline": "ingress", "table_id": 0, "priority": i, "match": text, "actions": "next;",
		}))
	}
	o.transact(operations)
	out, err := o.program("usr/bin/ovn-trace", "--db=unix:"+o.socket(), "--minimal", "sw", `inport == "p"`).CombinedOutput()
	if err != nil {
		o.Fatalf("ovn-trace: %v\n%s", err, out)
	}
	refused := map[string]string{}
	for line := range strings.SplitSeq(string(out), "\n") {
		before, why, ok := strings.Cut(line, ": parsing expression failed (")
		if !ok {
			continue
		}
		_, text, _ := strings.Cut(before, "|WARN|")
		refused[text] = why
	}
	return refused
}

// transact commits operations. It retries the connection until the server listens.
func (o *ovn) transact(operations []any) {
	o.Helper()
	var conn net.Conn
	for err := error(syscall.ENOENT); err != nil; {
		conn, err = net.Dial("unix", o.socket())
		if o.Context().Err() != nil {
			o.Fatal(err)
		}
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(map[string]any{"method": "transact", "params": operations, "id": 1}); err != nil {
		o.Fatal(err)
	}
	var reply struct{ Result []map[string]any }
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		o.Fatal(err)
	}
	for i, result := range reply.Result {
		if result["error"] != nil {
			o.Fatal("operation " + strconv.Itoa(i) + ": " + fmt.Sprint(result))
		}
	}
}
