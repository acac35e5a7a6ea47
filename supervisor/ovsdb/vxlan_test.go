// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"testing"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// TestTunnelKeysBeyondVXLANAreCounted: northd may give out such keys while no node uses VXLAN.
func TestTunnelKeysBeyondVXLANAreCounted(t *testing.T) {
	tr := newTrial(t)
	m := tr.add("node-1", "127.0.0.1")
	tr.start(m, v1alpha1.DatabaseStatus{BootstrapNode: "node-1", Members: []v1alpha1.DatabaseMember{{Node: "node-1", Address: "127.0.0.1"}}})
	tr.untilConnected(m, 1)
	admin := tr.admin(m, tr.callers)
	expect := func(want adminapi.BeyondVXLAN) {
		t.Helper()
		got, err := admin.BeyondVXLAN(t.Context())
		tr.must(err)
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	insert := func(operations ...any) {
		t.Helper()
		conn, err := jsonrpc.Dial(t.Context(), m.options.socket())
		tr.must(err)
		defer conn.Close()
		var answer []struct{ Error, Details string }
		tr.must(conn.Call("transact", append([]any{m.options.Database.Name}, operations...), &answer))
		for _, a := range answer {
			if a.Error != "" {
				t.Fatalf("%+v", a)
			}
		}
	}
	datapath := func(name string, key int) any {
		return map[string]any{"op": "insert", "table": "Datapath_Binding", "uuid-name": name, "row": map[string]any{"tunnel_key": key}}
	}
	port := func(name, of string, key int) any {
		return map[string]any{"op": "insert", "table": "Port_Binding", "row": map[string]any{
			"logical_port": name, "datapath": []any{"named-uuid", of}, "tunnel_key": key,
		}}
	}
	expect(adminapi.BeyondVXLAN{})
	insert(datapath("first", 4095), port("p1", "first", 2047))
	expect(adminapi.BeyondVXLAN{})
	insert(datapath("second", 4096), port("p2", "second", 2048), port("p3", "second", 32767))
	expect(adminapi.BeyondVXLAN{Datapaths: 1, Ports: 2})
}
