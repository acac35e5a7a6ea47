// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// southboundState returns the rows that ovn-northd computes, without UUIDs, as sorted text.
func southboundState(sb *nbtest.Server) []string {
	lines := map[string]bool{}
	for table, columns := range map[string][]string{
		"Logical_Flow":    {"pipeline", "table_id", "priority", "match", "actions"},
		"Load_Balancer":   {"name", "vips"},
		"Port_Binding":    {"logical_port", "mac", "type", "options"},
		"Address_Set":     {"name", "addresses"},
		"Port_Group":      {"name", "ports"},
		"Service_Monitor": {"logical_port", "ip", "port"},
	} {
		for _, row := range sb.Rows(table) {
			line := table
			for _, column := range columns {
				line += fmt.Sprint(" ", row[column])
			}
			lines[line] = true
		}
	}
	return slices.Sorted(maps.Keys(lines))
}

// While ovn-northd is busy, an owner's rows are deleted and inserted again. Then the southbound database must be as before.
func TestRowsAreReplacedWhileNorthdIsBusy(t *testing.T) {
	shape := serviceShape{ports: 2, endpoints: 3, addresses: 1}
	again := translate.PodInputs{Name: "again", Node: "n1", Subnet: "s1"}
	again.Policy.Subjects = []string{"subjects"}
	policy := ruleFor(translate.PolicyRule{Networks: without("10.0.0.0/24")})
	endpoint := netip.MustParseAddr("10.16.0.9")
	rule := translate.LBRuleInputs{
		Kind: translate.KindSwitchLBRule, Name: "web", Vpc: kubeovnv1.DefaultVpc, VIPs: []netip.Addr{netip.MustParseAddr("10.96.9.9")},
		Endpoints: []netip.Addr{endpoint}, Ports: []translate.LBRulePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, Target: 8080}},
		Monitors: map[netip.Addr]translate.Monitor{endpoint: {Port: "again.ns", Source: netip.MustParseAddr("10.16.0.99")}},
	}
	owners := map[string]struct {
		owner desired.Owner
		rows  []desired.Row
	}{
		"a Service": {translate.ServiceOwner("ns", "s"), translate.Service(shape.inputs("s", 1))},
		"a rule":    {translate.LBRuleOwner(translate.KindSwitchLBRule, "web"), translate.LBRule(rule)},
		"a pod":     {pod("again"), podOf(again, 7)},
		"a policy":  {policy.Owner, translate.Policy(policy)},
	}
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	chassis := applySubjects(e, northd, 1)
	for _, name := range slices.Sorted(maps.Keys(owners)) {
		e.apply(owners[name].owner, owners[name].rows)
	}
	chassis.Flows()
	want := southboundState(northd.Southbound)
	for _, name := range slices.Sorted(maps.Keys(owners)) {
		c := owners[name]
		for range 3 {
			signal(t, northd, syscall.SIGSTOP)
			e.apply(c.owner, nil)
			e.apply(c.owner, c.rows)
			signal(t, northd, syscall.SIGCONT)
			chassis.Flows()
			if got := southboundState(northd.Southbound); !slices.Equal(got, want) {
				missing := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return slices.Contains(got, line) })
				t.Fatalf("%s: after a replacement the southbound database lacks\n%s", name, strings.Join(missing, "\n"))
			}
		}
	}
}

func signal(t *testing.T, northd *nbtest.Northd, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(northd.PID(), signal); err != nil {
		t.Fatal(err)
	}
}

// Each inserted load balancer has a UUID of its own, and its health checks belong to the new row. The next process, and a second
// Apply, write nothing.
func TestAReplacedLoadBalancerHasAnotherUUID(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	endpoint := netip.MustParseAddr("10.16.0.9")
	in := translate.LBRuleInputs{
		Kind: translate.KindSwitchLBRule, Name: "web", Vpc: kubeovnv1.DefaultVpc, VIPs: []netip.Addr{netip.MustParseAddr("10.96.9.9")},
		Endpoints: []netip.Addr{endpoint}, Ports: []translate.LBRulePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, Target: 8080}},
		Monitors: map[netip.Addr]translate.Monitor{endpoint: {Port: "again.ns", Source: netip.MustParseAddr("10.16.0.99")}},
	}
	owner := translate.LBRuleOwner(translate.KindSwitchLBRule, "web")
	seen := map[string]bool{}
	rows := func() map[string]nbtest.Row {
		all := server.Rows("Load_Balancer")
		maps.DeleteFunc(all, func(_ string, row nbtest.Row) bool { return row["name"] != "slr-web/tcp" })
		return all
	}
	for range 3 {
		e.apply(owner, translate.LBRule(in))
		if len(rows()) != 1 || len(server.Rows("Load_Balancer_Health_Check")) != 1 {
			t.Fatalf("load balancers %v with checks %v", rows(), server.Rows("Load_Balancer_Health_Check"))
		}
		for uuid, row := range rows() {
			if seen[uuid] || len(row.Strings("health_check")) != 1 {
				t.Errorf("load balancer %s has checks %v; before it were %v", uuid, row["health_check"], seen)
			}
			seen[uuid] = true
			for _, group := range server.Rows("Load_Balancer_Group") {
				if !slices.Contains(group.Strings("load_balancer"), uuid) {
					t.Errorf("group %v lacks %s", group, uuid)
				}
			}
		}
		if len(seen) < 3 {
			e.apply(owner, nil)
		}
	}
	before := rows()
	e.apply(owner, translate.LBRule(in))
	next := lead(t, server.Endpoint())
	next.apply(owner, translate.LBRule(in))
	if after := rows(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the next process wrote %v instead of %v", after, before)
	}
	in.VIPs[0] = netip.MustParseAddr("10.96.9.10")
	next.apply(owner, translate.LBRule(in))
	for uuid := range rows() {
		if _, same := before[uuid]; !same {
			t.Errorf("a change replaced the row by %s", uuid)
		}
	}
	for uuid := range rows() { // another client takes the row from its owner
		server.Transact(nbtest.Op{"op": "update", "table": "Load_Balancer", "where": nbtest.Where("_uuid", "==", nbtest.UUID(uuid)), "row": map[string]any{"external_ids": nbtest.Map(nil)}})
		eventually.Wait{For: "the row has its owner again", Pause: time.Millisecond}.Holds(t, func() bool { // the engine sees the change after a while
			next.apply(owner, translate.LBRule(in))
			ids, _ := rows()[uuid]["external_ids"].(map[string]string)
			return len(rows()) == 1 && ids[nbtest.OwnerID] == owner.String()
		})
	}
	next.apply(owner, nil)
	next.apply(owner, translate.LBRule(in))
	for uuid := range rows() {
		if seen[uuid] {
			t.Errorf("the next process used %s again", uuid)
		}
	}
	next.apply(owner, nil)
	if n := len(rows()); n != 0 {
		t.Errorf("%d load balancers are left", n)
	}
}
