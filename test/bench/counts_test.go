// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/gate"
)

// Sizes of the check. They are small enough for every run; the third burst has the size of the first, on top of five times as many
// pods.
const checkedBurst, checkedBetween = 200, 800

// growth is the highest accepted ratio of a pod's cost with many existing pods to its cost without. The counts vary by a few
// percent.
const growth = 1.2

// TestCounts checks the work per pod and node against the design's limits, with the real binary and real servers. It checks only
// counts and their growth: unlike times, they are the same on any machine.
func TestCounts(t *testing.T) {
	gate.Skip(t, gate.Long)
	if _, err := cacheDir(); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join("..", "..")
	kiln, err := build(t.Context(), root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o, err := parse([]string{
		"-kiln", kiln, "-crds", filepath.Join(root, kilnCRDs), "-northd", "paused", "-joining", "40", "-subnets", "10", "-delete", "200",
	})
	if err != nil {
		t.Fatal(err)
	}
	o.layout = layout{} // not pinned: other tests run at the same time
	o.sizes = []int{checkedBurst, checkedBetween, checkedBurst}
	var done *bench
	var said string // output of the controller
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(said)
		}
	})
	_, err = measure(t.Context(), o, func(b *bench, ctx context.Context) error {
		done = b
		defer func() { said = b.leader.tail() }()
		for _, step := range []func(context.Context) error{b.prepare, b.fill, b.remove, b.join} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range done.bursts {
		checkBurst(t, c)
	}
	checkGrowth(t, done.bursts[0], done.bursts[2])
	checkRemoval(t, done)
	checkNodes(t, done)
	checkSubnets(t, done)
}

func checkBurst(t *testing.T, c costs) {
	t.Helper()
	expectWrites(t, "pods", c.writes, requests{"PATCH pods/status": c.pods, "POST ips": c.pods})
	// On a busy machine the API server ends watches that are slow to read. By then their version may have expired, so that the
	// client begins a new watch with a list. Every three minutes the API server itself lists the Services, to repair its allocation
	// of node ports.
	for what, count := range c.lists {
		own := what == "LIST services" && count <= 1+int(c.took/(3*time.Minute))
		if !own && (count > 2 || !strings.HasPrefix(what, "WATCH ")) {
			t.Errorf("a burst asks for lists: %v", c.lists)
		}
	}
	// A transaction carries ten pods, or the pods that arrive while it waits for tens of milliseconds: fewer than ten on a slow
	// machine.
	if most := c.pods/10 + int(c.took/(32*time.Millisecond)); c.transactions > most {
		t.Errorf("%d pods in %s took %d transactions, want at most %d", c.pods, c.took, c.transactions, most)
	}
}

// expectWrites checks the counts of writes. Status writes of subnets and VPCs are aggregated over time, so they only have to be
// rare.
func expectWrites(t *testing.T, of string, got, want requests) {
	t.Helper()
	n, rare := 0, got["PATCH subnets/status"]+got["PATCH vpcs/status"]
	for key, count := range want {
		n = max(n, count)
		if got[key] != count {
			t.Errorf("%s: %d × %s, want %d", of, got[key], key, count)
		}
	}
	if rare > max(3, n/10) {
		t.Errorf("%d %s: %d writes of the status of subnets", n, of, rare)
	}
	for key, count := range got {
		if _, ok := want[key]; !ok && count > 0 && !strings.HasSuffix(key, "s/status") {
			t.Errorf("%s: %d × %s, want none", of, count, key)
		}
	}
}

func checkGrowth(t *testing.T, first, last costs) {
	t.Helper()
	for name, values := range map[string][2]float64{
		"heap allocations": {first.allocations, last.allocations},
		"bytes received":   {float64(first.read), float64(last.read)},
		"bytes sent":       {float64(first.written), float64(last.written)},
	} {
		if values[0] == 0 || values[1]/values[0] > growth {
			t.Errorf("%s of the controller for %d pods: %.0f on %d others, %.0f on %d", name, first.pods, values[0], first.on, values[1], last.on)
		}
	}
}

func checkRemoval(t *testing.T, b *bench) {
	t.Helper()
	const scenario = "delete 200 of 1200"
	for metric, most := range map[string]float64{"  DELETE ips": 1, "API writes per pod": 1.1, "IP objects left behind": 0, "NB transactions per pod": 0.7} {
		if got := valueOf(t, b.rows, scenario, metric); got > most {
			t.Errorf("%s: %s is %v, want at most %v", scenario, metric, got, most)
		}
	}
}

func checkNodes(t *testing.T, b *bench) {
	t.Helper()
	const scenario = "40 nodes, 10 subnets"
	for metric, most := range map[string]float64{"  PATCH nodes": 1, "  POST ips": 1, "API writes per node": 2.2, "NB transactions per node": 1} {
		if got := valueOf(t, b.rows, scenario, metric); got > most {
			t.Errorf("%s: %s is %v, want at most %v", scenario, metric, got, most)
		}
	}
}

func checkSubnets(t *testing.T, b *bench) {
	t.Helper()
	const scenario = "10 subnets"
	for metric, most := range map[string]float64{
		"at once: NB transactions": 1, "at once: NB rows written": 5, "  PATCH subnets": 1, "  PATCH subnets/status": 1, "at once: API lists": 0,
	} {
		if got := valueOf(t, b.rows, scenario, metric); got > most {
			t.Errorf("%s: %s is %v, want at most %v", scenario, metric, got, most)
		}
	}
}

func valueOf(t *testing.T, rows []row, scenario, metric string) float64 {
	t.Helper()
	values, ok := valuesOf([][]row{rows}, row{Scenario: scenario, Metric: metric})
	if !ok {
		t.Fatalf("%s has no %q", scenario, metric)
	}
	return values[0]
}
