// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/supervisor/unixctl"
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
	if done, next := f.repair(t.Context(), call); !done || next < floodsInterval || next > floodsMaximum {
		t.Errorf("with an ACL: %v, next in %s", done, next)
	}
	daemon.Await("the port in the group", flooded("p1", "p2", "p3"))
	if done, _ := f.repair(t.Context(), call); done {
		t.Error("a second full computation")
	}
}

// engine plays ovn-northd's engine, which computes some looks after a request.
type engine struct {
	mu                     sync.Mutex
	lflow, northd, changes int
	refuse, busy, looks    int // requests to refuse; looks until a full computation
	requests               int
}

func (e *engine) call(_ context.Context, command string) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if command == "inc-engine/recompute" {
		if e.refuse--; e.refuse >= 0 {
			return "", errors.New("busy")
		}
		e.requests++
		e.looks = e.busy
		return "", nil
	}
	if e.looks--; e.looks == 0 {
		e.lflow, e.northd = e.lflow+1, e.northd+1
	}
	return statistics(e.lflow, e.northd, e.changes), nil
}

func statistics(lflow, northd, changes int) string {
	const node = "Node: %s\n- recompute: %12d\n- compute: %12d\n- cancel: %12d\n"
	return fmt.Sprintf(node+node+node, "northd", northd, changes, 0, "multicast_igmp", northd, changes, 0, "lflow", lflow, 0, 0)
}

func TestWhenAFullComputationIsRequested(t *testing.T) {
	for _, c := range []struct {
		name          string
		lflow, northd int // how often they are computed from all inputs
		changes       int
		requested     bool
	}{
		{"nothing happens", 0, 0, 0, false},
		{"changes are handled", 0, 0, 3, false},
		{"everything is computed", 1, 1, 1, false},
		{"lflow is computed without a change of northd", 2, 0, 0, false},
		{"lflow is computed with a change of northd", 1, 0, 1, true},
		{"and everything as well", 3, 2, 1, true},
	} {
		e := &engine{lflow: 4, northd: 3, changes: 2, busy: 1}
		f := floods{last: countsOf(statistics(4, 3, 2))}
		e.lflow, e.northd, e.changes = e.lflow+c.lflow, e.northd+c.northd, e.changes+c.changes
		if requested, _ := f.repair(t.Context(), e.call); requested != c.requested {
			t.Errorf("%s: requested: %v", c.name, requested)
		}
		if requested, _ := f.repair(t.Context(), e.call); requested {
			t.Errorf("%s: requested twice", c.name)
		}
	}
}

// TestTheEndOfAFullComputationIsAwaited: a daemon in its back-off answers before it computes, and one that is busy refuses.
func TestTheEndOfAFullComputationIsAwaited(t *testing.T) {
	const busy = 15
	e := &engine{lflow: 2, northd: 1, changes: 1, refuse: 1, busy: busy}
	var f floods
	if requested, next := f.repair(t.Context(), e.call); requested || next != floodsInterval {
		t.Errorf("refused: %v, next in %s", requested, next)
	}
	if requested, next := f.repair(t.Context(), e.call); !requested || next < floodsPause*(busy-1)*floodsPoll || next > floodsMaximum {
		t.Errorf("accepted: %v, next in %s", requested, next)
	}
	e.changes++
	if e.lflow++; e.requests != 1 {
		t.Errorf("%d requests", e.requests)
	}
	if requested, _ := f.repair(t.Context(), e.call); !requested {
		t.Error("a second port is not repaired")
	}
}

// TestEachDaemonIsRepaired starts two daemons in turn, which have missed ports.
func TestEachDaemonIsRepaired(t *testing.T) {
	tr := newTrial(t, "standby", "127.0.6.9:10671")
	counted := testutil.ToFloat64(repairs.WithLabelValues(tr.options.Node))
	for i := 1; i <= 2; i++ {
		tr.show(clusterOf("c", fmt.Sprintf("192.0.2.%d", i)))
		tr.until("a full computation is requested", func() bool { return len(tr.noted("requested")) == i })
	}
	tr.until("it is counted", func() bool { return testutil.ToFloat64(repairs.WithLabelValues(tr.options.Node)) == counted+2 })
}
