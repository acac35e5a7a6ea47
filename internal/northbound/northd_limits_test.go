// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// TestEqualLimitsHaveTheirOwnMeters: OVN merges equal logical flows of two switches, with one meter for both. The flows of limits name their ports. The
// directions of a pod have a meter each.
func TestEqualLimitsHaveTheirOwnMeters(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	ports := map[string]string{}
	limit := translate.Meter{Rate: 10_000, Burst: 5_000}
	for i, s := range []string{"s1", "s2"} {
		name := "of-" + s
		e.apply(pod(name), podOf(translate.PodInputs{Name: name, Node: "n1", Subnet: s, Ingress: limit, Egress: limit}, i))
		ports[name+".ns"] = name
	}
	settle := func() { // limits are paced
		for _, name := range ports {
			e.settle(pod(name))
		}
	}
	settle()
	chassis := northd.Chassis("n1", ports)
	chassis.Sync()
	flows := map[string]int{}
	for _, row := range northd.Southbound.Rows("Logical_Flow") {
		if actions, _ := row["actions"].(string); strings.Contains(actions, "set_meter(10000, 5000)") {
			flows[fmt.Sprint(row["pipeline"])]++
		}
	}
	meters := map[string]bool{}
	for _, m := range regexp.MustCompile(`meter:(\d+)`).FindAllStringSubmatch(limitFlows(chassis.DumpFlows()), -1) {
		meters[m[1]] = true
	}
	if flows["ingress"] != 2 || flows["egress"] != 2 || len(meters) != 4 {
		t.Errorf("logical flows %v of the pipelines of switches, and meters %v, want two flows in each and four meters", flows, meters)
	}
	e.apply(pod("of-s1"), nil)
	e.apply(pod("of-s2"), nil)
	settle()
	if rows := server.Rows("QoS"); len(rows) > 0 {
		t.Errorf("rows without a pod: %v", rows)
	}
}

// limitFlows returns the flows of the priority of limits.
func limitFlows(flows string) string {
	var kept []string
	for line := range strings.Lines(flows) {
		if strings.Contains(line, "priority=1000,") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}
