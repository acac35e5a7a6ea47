// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kiln-net/kiln/cni/wire"
)

// TestLatency prints how long ADD and DEL take for pods that have their addresses, as a runtime sees it (two plugins executed) and
// in the agent alone. The flows of OVN are not in it: the test plays ovn-controller. It fails only when an ADD takes as long as one
// that polls would.
func TestLatency(t *testing.T) {
	const pods, parallel = 100, 10
	n := serving(t)
	containers := make([]*container, pods)
	for i := range containers {
		containers[i] = n.sandbox(n.pod(fmt.Sprintf("latency-%d", i), 1000+i), newID())
	}
	agent := wire.NewClient(n.options.CNISocket)
	request := func(c *container) wire.Request {
		return wire.Request{Network: "kube-ovn", Provider: "ovn", PodName: c.pod.Name, PodNamespace: "default", PodUID: string(c.pod.UID),
			ContainerID: c.id, NetNS: c.path, IfName: "eth0"}
	}
	rounds := []struct {
		name    string
		workers int
		add     func(*container) error
		del     func(*container) error
	}{
		{"runtime, one at a time", 1, func(c *container) error { _, err := c.add(); return err }, (*container).del},
		{"runtime, ten at once", parallel, func(c *container) error { _, err := c.add(); return err }, (*container).del},
		{"agent, one at a time", 1,
			func(c *container) error { _, err := agent.Add(t.Context(), request(c)); return err },
			func(c *container) error { return agent.Del(t.Context(), request(c)) }},
	}
	for _, round := range rounds {
		adds := measure(t, containers, round.workers, round.add)
		dels := measure(t, containers, round.workers, round.del)
		t.Logf("%-24s ADD p50 %6s p99 %6s   DEL p50 %6s p99 %6s", round.name,
			percentile(adds, 50), percentile(adds, 99), percentile(dels, 50), percentile(dels, 99))
		if limit := 2 * time.Second; percentile(adds, 50) > limit {
			t.Errorf("%s: half of the ADDs took longer than %s", round.name, limit)
		}
	}
}

func measure(t *testing.T, containers []*container, workers int, f func(*container) error) []time.Duration {
	t.Helper()
	work := make(chan int)
	took := make([]time.Duration, len(containers))
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for i := range work {
				began := time.Now()
				if err := f(containers[i]); err != nil {
					t.Errorf("%s: %v", containers[i].pod.Name, err)
				}
				took[i] = time.Since(began)
			}
		})
	}
	for i := range containers {
		work <- i
	}
	close(work)
	wait.Wait()
	slices.Sort(took)
	return took
}

func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)-1)*p/100].Round(100 * time.Microsecond)
}
