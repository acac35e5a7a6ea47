// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"fmt"
	"testing"

	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// A session belongs to the chassis of its router port, also after the port has moved.
func TestSessionsFollowTheChassisOfTheirPort(t *testing.T) {
	tr := newTrial(t)
	m, _ := tr.bootstrap("cp-1", "127.0.3.40")
	insert := func(table, id string, row map[string]any) map[string]any {
		return map[string]any{"op": "insert", "table": table, "uuid-name": id, "row": row}
	}
	track := func(port string, discriminator int) map[string]any {
		return insert("BFD", "s"+port, map[string]any{"logical_port": port, "dst_ip": "192.0.2.254", "src_port": 49152, "disc": discriminator, "status": "down"})
	}
	named := func(id string) []any { return []any{"named-uuid", id} }
	binding := func(port, kind, of string, key int, chassis ...any) map[string]any {
		row := map[string]any{
			"logical_port": port, "type": kind, "datapath": named("d"), "tunnel_key": key, "options": []any{"map", [][]string{{"distributed-port", of}}},
		}
		if len(chassis) > 0 {
			row["chassis"] = chassis[0]
		}
		return insert("Port_Binding", fmt.Sprint("p", key), row)
	}
	m.transact(t,
		insert("Encap", "ea", map[string]any{"type": "geneve", "ip": "192.0.2.1", "chassis_name": "a"}),
		insert("Encap", "eb", map[string]any{"type": "geneve", "ip": "192.0.2.2", "chassis_name": "b"}),
		insert("Chassis", "a", map[string]any{"name": "a", "encaps": named("ea")}), insert("Chassis", "b", map[string]any{"name": "b", "encaps": named("eb")}),
		insert("Datapath_Binding", "d", map[string]any{"tunnel_key": 1}),
		binding("cr-out", "chassisredirect", "out", 1, named("a")), binding("cr-idle", "chassisredirect", "idle", 2), binding("gateway", "l3gateway", "gateway", 3, named("b")),
		track("out", 1), track("idle", 2), track("gateway", 3),
	)
	conn, err := jsonrpc.Dial(t.Context(), m.options.socket())
	tr.must(err)
	defer conn.Close()
	has := func(want string) {
		t.Helper()
		supervisortest.Eventually(t, "the sessions have "+want, func() error {
			var rows []session
			if err := conn.Select(Southbound.Name, "BFD", []string{"logical_port", "chassis_name"}, nil, &rows); err != nil {
				return err
			}
			found := map[string]string{}
			for _, row := range rows {
				found[row.Port] = row.Chassis
			}
			if got := fmt.Sprint(found); got != want {
				return fmt.Errorf("they have %s", got)
			}
			return nil
		})
	}
	has("map[gateway: idle: out:a]")
	to := func(chassis any) {
		m.transact(t, map[string]any{"op": "update", "table": "Port_Binding", "where": []any{[]any{"logical_port", "==", "cr-out"}}, "row": map[string]any{"chassis": chassis}})
	}
	move := func(name string) {
		var rows []struct {
			UUID jsonrpc.UUID `json:"_uuid"`
		}
		tr.must(conn.Select(Southbound.Name, "Chassis", []string{"_uuid"}, []any{[]any{"name", "==", name}}, &rows))
		to([]any{"uuid", rows[0].UUID})
	}
	move("b")
	has("map[gateway: idle: out:b]")
	to([]any{"set", []any{}})
	move("a")
	has("map[gateway: idle: out:a]")
	// Something else overwrites it.
	m.transact(t, map[string]any{"op": "update", "table": "BFD", "where": []any{[]any{"logical_port", "==", "out"}}, "row": map[string]any{"chassis_name": ""}})
	has("map[gateway: idle: out:a]")
	tr.must(m.halt())
}
