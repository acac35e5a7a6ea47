// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// nth returns the nth pod of applyNetwork's network.
func nth(i int) (desired.Owner, []desired.Row) {
	name := fmt.Sprintf("pod-%05d", i)
	return pod(name), podOf(translate.PodInputs{Name: name, Node: fmt.Sprint("n", i%2+1), Subnet: fmt.Sprint("s", i/2%2+1)}, i)
}

// TestTheCostOfAPodDoesNotGrow counts allocations, including the replica's and the connection's: a pod must take the same
// number with 20,000 ports as with 1,000. An iteration over all ports, or over the ports of a switch or a node, would fail the
// test.
func TestTheCostOfAPodDoesNotGrow(t *testing.T) {
	e := lead(t, nbtest.Start(t).Endpoint())
	applyNetwork(e)
	e.fill(0, 1000)
	few := e.costs(1000)
	e.fill(1000, 20000)
	many := e.costs(20000)
	for _, what := range []string{"created", "applied again", "deleted"} {
		t.Logf("a pod is %s with %d allocations among 1,000, %d among 20,000", what, few[what], many[what])
		if many[what] > few[what]+few[what]/10 {
			t.Errorf("the cost of a pod that is %s grows with the pods there are", what)
		}
	}
	// The limits are 20% above the measured values.
	for what, bar := range map[string]uint64{"created": 690, "applied again": 100, "deleted": 370} {
		if many[what] > bar {
			t.Errorf("a pod is %s with %d allocations, want at most %d", what, many[what], bar)
		}
	}
}

// fill applies pods, many concurrently.
func (e *engine) fill(from, to int) {
	e.t.Helper()
	for ; from < to; from += 500 {
		pods := map[string]int{}
		var names []string
		for i := from; i < min(from+500, to); i++ {
			o, _ := nth(i)
			pods[o.Name] = i
			names = append(names, o.Name)
		}
		e.applyAll(names, func(name string) []desired.Row { _, rows := nth(pods[name]); return rows })
	}
}

// costs counts the allocations per pod of some pods applied one after another, in addition to the existing ones.
func (e *engine) costs(there int) map[string]uint64 {
	e.t.Helper()
	const pods = 100
	count := func(apply func(o desired.Owner, rows []desired.Row)) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range pods {
			apply(nth(there + i))
		}
		runtime.ReadMemStats(&after)
		return (after.Mallocs - before.Mallocs) / pods
	}
	return map[string]uint64{
		"created":       count(e.apply),
		"applied again": count(e.apply),
		"deleted":       count(func(o desired.Owner, _ []desired.Row) { e.apply(o, nil) }),
	}
}
