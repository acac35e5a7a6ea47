// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/supervisor/unixctl"
)

// flooded returns a check that the multicast group _MC_flood of the only switch has the ports.
func flooded(ports ...string) func(*nbtest.Server) bool {
	return func(sb *nbtest.Server) bool {
		bindings, has := sb.Rows("Port_Binding"), []string{}
		for _, group := range sb.Rows("Multicast_Group") {
			if group["name"] == "_MC_flood" {
				for _, uuid := range group.Strings("ports") {
					has = append(has, bindings[uuid]["logical_port"].(string))
				}
			}
		}
		slices.Sort(has)
		return slices.Equal(has, ports)
	}
}

// TestNewPortsAreInMulticastGroups adds ports, alone and together with an ACL, to a real ovn-northd.
func TestNewPortsAreInMulticastGroups(t *testing.T) {
	nb := nbtest.Start(t)
	daemon := nb.Northd()
	call := func(ctx context.Context, command string) (string, error) {
		return unixctl.Call(ctx, daemon.Control(), command)
	}
	insert := func(table, name string, row map[string]any) nbtest.Op {
		return nbtest.Op{"op": "insert", "table": table, "row": row, "uuid-name": name}
	}
	toSwitch := func(column, name string) nbtest.Op {
		return nbtest.Op{"op": "mutate", "table": "Logical_Switch", "where": nbtest.Where("name", "==", "s"), "mutations": []any{[]any{column, "insert", []any{"named-uuid", name}}}}
	}
	port := func(name string) []nbtest.Op {
		addresses := fmt.Sprintf("00:00:00:00:00:0%c 192.0.2.1", name[1])
		return []nbtest.Op{insert("Logical_Switch_Port", name, map[string]any{"name": name, "addresses": addresses}), toSwitch("ports", name)}
	}
	bound := func(name string) {
		daemon.Await("port "+name, func(sb *nbtest.Server) bool {
			for _, binding := range sb.Rows("Port_Binding") {
				if binding["logical_port"] == name {
					return true
				}
			}
			return false
		})
	}
	nb.Transact(insert("Logical_Switch", "s", map[string]any{"name": "s"}))
	nb.Transact(port("p1")...)
	bound("p1")

	var f floods
	if _, _ = f.repair(t.Context(), call); !flooded("p1")(daemon.Southbound) {
		t.Fatal("the first port is in no group")
	}
	nb.Transact(port("p2")...)
	bound("p2")
	if done, _ := f.repair(t.Context(), call); done {
		t.Error("a full computation for a port without an ACL")
	}
	acl := insert("ACL", "a", map[string]any{"priority": 1000, "direction": "to-lport", "match": "ip4", "action": "drop"})
	nb.Transact(append(port("p3"), acl, toSwitch("acls", "a"))...)
	bound("p3")
	if !flooded("p1", "p2")(daemon.Southbound) {
		t.Fatal("this OVN adds a port together with an ACL to the groups. Once every supported one does, delete floods.go.")
	}
	if done, next := f.repair(t.Context(), func(context.Context, string) (string, error) { return "", errors.New("busy") }); done || next != floodsInterval {
		t.Errorf("without an answer: %v, next in %s", done, next)
	}
	if done, next := f.repair(t.Context(), call); !done || next < floodsInterval {
		t.Errorf("with an ACL: %v, next in %s", done, next)
	}
	daemon.Await("the port in the group", flooded("p1", "p2", "p3"))
	if done, _ := f.repair(t.Context(), call); done {
		t.Error("a second full computation")
	}
}

// TestAFullComputationThatIsNotRequestedIsRequestedAgain: the daemon ends, or is busy for long.
func TestAFullComputationThatIsNotRequestedIsRequestedAgain(t *testing.T) {
	const statistics = "Node: northd\n- recompute: 1\n- compute: 2\n- cancel: 0\nNode: lflow\n- recompute: 2\n- compute: 1\n- cancel: 0\n"
	var f floods
	var requests int
	call := func(_ context.Context, command string) (string, error) {
		if command != "inc-engine/recompute" {
			return statistics, nil
		}
		if requests++; requests == 1 {
			return "", errors.New("busy")
		}
		return "", nil
	}
	var done []bool
	for range 3 {
		d, _ := f.repair(t.Context(), call)
		done = append(done, d)
	}
	if !slices.Equal(done, []bool{false, true, false}) {
		t.Errorf("requested: %v", done)
	}
}
