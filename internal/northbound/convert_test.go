// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// TestAConvertedSchemaServesTheOlderEngine converts the database to a newer schema under an engine with the older one. This
// happens in an upgrade before the controller is replaced, and after a rollback.
func TestAConvertedSchemaServesTheOlderEngine(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	for _, name := range []string{"a", "b"} {
		e.apply(pod(name), podRows(name, "s", "n"))
	}
	tables := []string{"Logical_Switch", "Logical_Switch_Port", "Logical_Router", "Logical_Router_Port"}
	before := server.Dump(tables...)
	server.Convert(func(tables map[string]any) {
		tables["Logical_Switch_Port"].(map[string]any)["columns"].(map[string]any)["added"] = map[string]any{"type": "string"}
		tables["Added"] = map[string]any{"columns": map[string]any{"name": map[string]any{"type": "string"}}, "isRoot": true}
	})
	after := server.Dump(tables...)
	if len(before["Logical_Switch_Port"]) == 0 || len(before["Logical_Switch_Port"]) != len(after["Logical_Switch_Port"]) {
		t.Errorf("there were %d ports and are %d", len(before["Logical_Switch_Port"]), len(after["Logical_Switch_Port"]))
	}
	for uuid, row := range after["Logical_Switch_Port"] {
		if row["added"] != "" {
			t.Errorf("port %s has %v in the new column", uuid, row["added"])
		}
	}
	e.apply(pod("c"), podRows("c", "s", "n"))
	e.apply(pod("a"), nil)
	e.apply(pod("b"), podRows("b", "s", "n"))
	if got, want := server.Names("Logical_Switch_Port"), []string{"b.ns", "c.ns"}; !slices.Equal(got, want) {
		t.Errorf("the ports are %v, want %v", got, want)
	}
}
