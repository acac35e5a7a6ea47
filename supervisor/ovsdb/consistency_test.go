// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// TestABackupIsOfOneTransaction backs up while a client writes. Each of its transactions inserts a row into two tables and writes its number into
// two other rows, so a backup that mixes two transactions has different numbers.
func TestABackupIsOfOneTransaction(t *testing.T) {
	tr := newTrial(t)
	m, _ := tr.bootstrap("cp-1", "127.0.3.12")
	row := func(table, name string) map[string]any {
		return map[string]any{"op": "insert", "table": table, "row": map[string]any{"name": name}}
	}
	var filler []any // so that reading takes as long as some transactions
	for i := range 3000 {
		filler = append(filler, row("Address_Set", fmt.Sprint("filler-", i)))
	}
	m.transact(t, append(filler, row("Address_Set", "counter"), row("Port_Group", "counter"))...)

	writing, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	written := make(chan int, 1)
	go func() {
		conn, err := jsonrpc.Dial(t.Context(), m.options.socket())
		n := 0
		for ; err == nil && writing.Err() == nil; n++ {
			update := func(table, column string) map[string]any {
				return map[string]any{
					"op": "update", "table": table, "where": []any{[]any{"name", "==", "counter"}}, "row": map[string]any{column: fmt.Sprint(n)},
				}
			}
			var results []struct{ Error string }
			err = conn.Call("transact", []any{
				m.options.Database.Name, update("Address_Set", "addresses"), row("Address_Set", fmt.Sprint("a", n)),
				row("Port_Group", fmt.Sprint("p", n)), update("Port_Group", "ports"),
			}, &results)
			for _, r := range results {
				if err == nil && r.Error != "" {
					err = fmt.Errorf("transaction %d: %+v", n, results)
				}
			}
		}
		written <- n
		done <- err
	}()
	f := newFiles(m.options)
	server := func(ctx context.Context) (*jsonrpc.Conn, error) { return jsonrpc.Dial(ctx, m.options.socket()) }
	var seen []string
	for i := range 8 {
		made, err := f.backUpFrom(t.Context(), server, plannedBackup{at: time.Unix(int64(1_000_000+i), 0), keep: 10})
		tr.must(err)
		path := filepath.Join(f.backups(), made.Name)
		query := func(table, column, prefix string) (counter string, rows int) {
			text, err := f.run(t.Context(), "query", path, fmt.Sprintf(
				`[%q,{"op":"select","table":%q,"where":[],"columns":["name",%q]}]`, m.options.Database.Name, table, column))
			tr.must(err)
			var results []struct{ Rows []map[string]any }
			tr.must(json.Unmarshal([]byte(text), &results))
			for _, r := range results[0].Rows {
				name := r["name"].(string)
				if name == "counter" {
					counter = fmt.Sprint(r[column])
				}
				if len(name) > 1 && strings.HasPrefix(name, prefix) && name[1] >= '0' && name[1] <= '9' {
					rows++
				}
			}
			return counter, rows
		}
		sets, setRows := query("Address_Set", "addresses", "a")
		groups, groupRows := query("Port_Group", "ports", "p")
		if sets != groups || setRows != groupRows {
			t.Errorf("backup %d has number %s and %d rows in one table, %s and %d in the other", i, sets, setRows, groups, groupRows)
		}
		seen = append(seen, sets)
	}
	stop()
	n := <-written
	tr.must(<-done)
	if first := seen[0]; !slices.ContainsFunc(seen, func(s string) bool { return s != first }) {
		t.Errorf("%d transactions were written and all backups hold %s: this proves nothing", n, first)
	}
	t.Logf("%d transactions; the backups hold %v", n, seen)
}

// withSchema writes a variant of the image's schema with another version.
func (m *trialMember) withSchema(t *testing.T, version string, change func(tables map[string]any)) (path, original string) {
	t.Helper()
	text, err := os.ReadFile(m.options.Database.Schema)
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	schema := map[string]any{}
	if err := decoder.Decode(&schema); err != nil {
		t.Fatal(err)
	}
	original = schema["version"].(string)
	schema["version"] = version
	delete(schema, "cksum")
	change(objects(schema["tables"]))
	if text, err = json.Marshal(schema); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), version+".ovsschema")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, original
}

// TestABackupOfAnOlderSchemaIsTaken checks that a recovery converts the backup to the schema of the image.
func TestABackupOfAnOlderSchemaIsTaken(t *testing.T) {
	tr := newTrial(t)
	m := tr.add("cp-1", "127.0.3.13")
	image := m.options.Database.Schema
	older, version := m.withSchema(t, "1.0.0", func(tables map[string]any) {
		delete(tables, "FDB")
		delete(objects(objects(tables["Chassis"])["columns"]), "other_config")
	})
	m.options.Database.Schema = older
	tr.start(m, v1alpha1.DatabaseStatus{BootstrapNode: "cp-1"})
	tr.untilConnected(m, 1)
	m.insert(t, "a")
	m.transact(t, map[string]any{"op": "insert", "table": "Chassis", "row": map[string]any{"name": "n1", "encaps": []any{"named-uuid", "e"}}},
		map[string]any{"op": "insert", "table": "Encap", "uuid-name": "e", "row": map[string]any{"type": "geneve", "ip": "192.0.2.1"}})
	made, err := newFiles(m.options).backUpFrom(t.Context(), func(ctx context.Context) (*jsonrpc.Conn, error) {
		return jsonrpc.Dial(ctx, m.options.socket())
	}, plannedBackup{at: time.Unix(1_000_000, 0), keep: 1})
	tr.must(err)
	m.insert(t, "later")
	tr.must(m.halt())

	m.options.Database.Schema = image
	status := tr.recovery(m, v1alpha1.RecoverBackup, made.Name, 2000)
	tr.start(m, status)
	tr.recover(m, status, m)
	if names := m.content(t); names != "a" {
		t.Errorf("the address sets are %q", names)
	}
	rows := m.transact(t, map[string]any{"op": "select", "table": "Chassis", "where": []any{[]any{"other_config", "==", []any{"map", []any{}}}}})
	if len(rows[0].Rows) != 1 || rows[0].Rows[0].Name != "n1" {
		t.Errorf("with the column that the older schema does not have there are %+v", rows)
	}
	schemas, err := tr.admin(m, tr.callers).Schemas(t.Context())
	tr.must(err)
	if schemas.Database != version {
		t.Errorf("the schema is %s, the image's is %s", schemas.Database, version)
	}
}

// TestAConversionKeepsRowsAndClients converts a database with rows while the ovn-controller of the older schema is connected. It
// must keep working with the newer schema, as on nodes that are upgraded later.
func TestAConversionKeepsRowsAndClients(t *testing.T) {
	tr := newTrial(t)
	m, status := tr.bootstrap("cp-1", "127.0.3.14")
	for i := range 50 {
		m.insert(t, fmt.Sprint("a", i))
	}
	control, _ := tr.controller(m, "n1")
	chassis := func(want int) {
		t.Helper()
		supervisortest.Eventually(t, fmt.Sprint(want, " chassis"), func() error {
			rows := m.transact(t, map[string]any{"op": "select", "table": "Chassis", "where": []any{[]any{"name", "==", "n1"}}})[0].Rows
			if len(rows) != want {
				return fmt.Errorf("there are %v", rows)
			}
			return nil
		})
	}
	chassis(1)
	before := m.content(t)
	tr.must(m.halt())

	m.options.Database.Schema, _ = m.withSchema(t, "99.0.0", func(tables map[string]any) {
		objects(objects(tables["Chassis"])["columns"])["added"] = map[string]any{"type": "string"}
		tables["Added"] = map[string]any{"columns": map[string]any{"name": map[string]any{"type": "string"}}, "isRoot": true}
	})
	tr.start(m, v1alpha1.DatabaseStatus{BootstrapNode: "cp-1", ClusterID: status.ClusterID, Members: []v1alpha1.DatabaseMember{
		{Node: "cp-1", Address: "127.0.3.14", ServerID: status.ServerID},
	}})
	tr.untilConnected(m, 1)
	connected := func() {
		t.Helper()
		supervisortest.Eventually(t, "ovn-controller is connected", func() error {
			got, err := unixctl.Call(t.Context(), control, "connection-status")
			if err == nil && got != "connected" {
				err = fmt.Errorf("it is %s", got)
			}
			return err
		})
	}
	connected()
	admin := tr.admin(m, tr.callers)
	tr.must(admin.Convert(t.Context()))
	if schemas, err := admin.Schemas(t.Context()); err != nil || schemas.Database != "99.0.0" {
		t.Fatalf("the schemas are %+v: %v", schemas, err)
	}
	if after := m.content(t); after != before {
		t.Errorf("the rows were %s and are %s", before, after)
	}
	m.transact(t, map[string]any{"op": "insert", "table": "Added", "row": map[string]any{"name": "new"}})
	connected()
	m.transact(t, map[string]any{"op": "delete", "table": "Chassis", "where": []any{[]any{"name", "==", "n1"}}})
	chassis(1) // ovn-controller notices the deletion and registers again
}

// controller runs the ovn-controller of a node of that name on the member's database, and returns its control socket and its log.
func (tr *trial) controller(m *trialMember, name string) (control, log string) {
	t := tr.t
	t.Helper()
	dir := supervisortest.RunDir(t)
	conf, socket := filepath.Join(dir, "conf.db"), filepath.Join(dir, "db.sock")
	control, log = filepath.Join(dir, "controller.ctl"), filepath.Join(dir, "controller.log")
	_, err := newFiles(m.options).run(t.Context(), "create", conf, supervisortest.File(t, "/usr/share/openvswitch/vswitch.ovsschema"))
	tr.must(err)
	background(t, "usr/sbin/ovsdb-server", conf, "--remote=punix:"+socket, "--unixctl="+filepath.Join(dir, "db.ctl"))
	vsctl := slices.Concat(supervisortest.Program(t, "usr/bin/ovs-vsctl"), []string{
		"--no-wait", "--timeout=20", "--db=unix:" + socket, "init", "--", "set", "Open_vSwitch", ".", "external_ids:system-id=" + name,
		"external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip=" + m.options.Address.String(), "external_ids:ovn-remote=unix:" + m.options.socket(),
	})
	supervisortest.Eventually(t, "the node is configured", func() error { return exec.Command(vsctl[0], vsctl[1:]...).Run() })
	background(t, "usr/bin/ovn-controller", "unix:"+socket, "--unixctl="+control, "--log-file="+log)
	return control, log
}
