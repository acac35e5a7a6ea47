// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

func TestChassisAreListedAndRemoved(t *testing.T) {
	tr := newTrial(t)
	m, _ := tr.bootstrap("cp-1", "127.0.3.24")
	conn, err := jsonrpc.Dial(t.Context(), m.options.socket())
	tr.must(err)
	defer conn.Close()
	chassis := func(name, address string, more map[string]any) []any {
		row := map[string]any{"name": name, "encaps": []string{"named-uuid", "e" + name}}
		for column, value := range more {
			row[column] = value
		}
		return []any{
			map[string]any{"op": "insert", "table": "Encap", "uuid-name": "e" + name, "row": map[string]any{"type": "geneve", "ip": address, "chassis_name": name}},
			map[string]any{"op": "insert", "table": "Chassis", "row": row},
			map[string]any{"op": "insert", "table": "Chassis_Private", "row": map[string]any{"name": name}},
		}
	}
	var made json.RawMessage
	tr.must(conn.Call("transact", slices.Concat([]any{"OVN_Southbound"},
		chassis("a", "192.0.2.1", nil), chassis("b", "192.0.2.2", nil),
		chassis("remote", "192.0.2.3", map[string]any{"other_config": []any{"map", [][]string{{"is-remote", "true"}}}}),
		chassis("vtep", "192.0.2.4", map[string]any{"vtep_logical_switches": "s"}),
	), &made))
	admin := tr.admin(m, tr.callers)
	has := func(want ...string) {
		t.Helper()
		names, err := admin.Chassis(t.Context())
		if slices.Sort(names); err != nil || !slices.Equal(names, want) {
			t.Errorf("chassis %q, %v; want %q; made %s", names, err, want, made)
		}
	}
	has("a", "b")
	tr.must(admin.RemoveChassis(t.Context(), []string{"a", "remote", "vtep", "none"}))
	has("b")
	for table, want := range map[string]int{"Chassis": 3, "Encap": 3} {
		var answer []struct{ Rows []any }
		tr.must(conn.Call("transact", []any{"OVN_Southbound", map[string]any{"op": "select", "table": table, "where": []any{}}}, &answer))
		if len(answer[0].Rows) != want {
			t.Errorf("%s has %d rows, want %d", table, len(answer[0].Rows), want)
		}
	}
	tr.must(conn.Call("transact", slices.Concat([]any{"OVN_Southbound"}, chassis("new", "192.0.2.1", nil)), &made))
	has("b", "new")
}
