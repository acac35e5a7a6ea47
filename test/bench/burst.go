// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"
)

// costs holds the costs of a burst. The costs per pod should not grow with the number of existing pods.
type costs struct {
	pods, on int
	// took is the time from the first creation to the last annotation.
	took time.Duration
	// cpu is the controller's CPU time until the last pod was annotated; committed is the median from a creation to the port in NB.
	cpu, committed time.Duration
	// transactions counts NB transactions of the system under test.
	transactions int
	// writes are API requests of the system under test, without the creations of the pods; lists are requests of all clients.
	writes, lists requests
	// allocations counts the heap allocations of the controller; read and written are the bytes that it received and sent.
	allocations         float64
	read, written       int64
	northd, northdBound time.Duration
	// northdInSB are ovn-northd's transactions in SB and their size.
	northdInSB transactions
}

// fill runs the bursts of the -n flag.
func (b *bench) fill(ctx context.Context) error {
	for _, n := range b.options.sizes {
		if err := b.burst(ctx, n); err != nil {
			return fmt.Errorf("%d pods on %d: %w", n, len(b.pods), err)
		}
	}
	return nil
}

// burst creates n pods as fast as possible, in addition to the existing pods.
func (b *bench) burst(ctx context.Context, n int) error {
	scenario := fmt.Sprintf("burst %d on %d%s", n, len(b.pods), b.loader.where)
	c := costs{pods: n, on: len(b.pods)}
	names := b.group("burst", n)
	if b.options.northd {
		if err := b.world.northdCaughtUp(ctx); err != nil {
			return err
		}
	}
	before, err := b.state(ctx)
	if err != nil {
		return err
	}
	profiled := b.startProfile(ctx, fmt.Sprintf("cpu-%d-on-%d", n, len(b.pods)), min(max(2, n/150), 120))
	if err := b.loader.create(ctx, names); err != nil {
		return err
	}
	if err := b.loader.await(ctx, names); err != nil {
		return err
	}
	annotated, err := b.world.cpu()
	if err != nil {
		return err
	}
	served, err := b.world.served(ctx)
	if err != nil {
		return err
	}
	b.pods = append(b.pods, names...)
	c.took = b.addRate(scenario, names)
	if err := b.ports.awaitNames(ctx, portNames(names), true); err != nil {
		return err
	}
	if err := b.bound(ctx, names); err != nil {
		return err
	}
	bound, err := b.world.cpu()
	if err != nil {
		return err
	}
	c.committed = b.addSeen(scenario, names)
	if err := <-profiled; err != nil {
		return err
	}
	if b.options.northd {
		b.add(scenario, "all ports in SB after", "s", span(names, b.loader.createdAt, b.binding).Seconds())
	}
	b.add(scenario, "API writes per pod until annotated", "", float64(served.writes.since(before.served.writes).total()-n)/float64(n))
	c.cpu = annotated[controller] - before.cpu[controller]
	c.northd, c.northdBound = annotated[northd]-before.cpu[northd], bound[northd]-before.cpu[northd]
	if err := b.addCosts(ctx, scenario, &c, before); err != nil {
		return err
	}
	b.addCPU(scenario, n, before.cpu, annotated)
	if b.options.northd {
		b.add(scenario, "CPU of ovn-northd per pod, until all ports are in SB", "ms", milliseconds(c.northdBound)/float64(n))
		b.add(scenario, "ovn-northd's SB transactions per pod", "", float64(c.northdInSB.Northd)/float64(n))
		b.add(scenario, "  their size", "kB", float64(c.northdInSB.NorthdBytes)/float64(n)/1e3)
		flows, err := b.world.flows(ctx)
		if err != nil {
			return err
		}
		b.add(scenario, "logical flows in SB", "", float64(flows))
	}
	b.addGrowth(scenario, c)
	b.bursts = append(b.bursts, c)
	return b.addMemory(ctx, scenario)
}

func (b *bench) addRate(scenario string, names []string) time.Duration {
	n := len(names)
	took, sorted := b.loader.span(names), b.loader.latencies(names)
	b.addRatio(scenario, "rate", "pods/s", float64(n)/took.Seconds(), ratio(took/time.Duration(n), b.floors.perPod))
	b.add(scenario, "created to annotated, p50", "ms", milliseconds(percentile(sorted, 50)))
	b.add(scenario, "created to annotated, p99", "ms", milliseconds(percentile(sorted, 99)))
	return took
}

// startProfile, if -profiles is set, takes a CPU profile of the controller for a number of seconds.
func (b *bench) startProfile(ctx context.Context, name string, seconds int) <-chan error {
	done := make(chan error, 1)
	if b.options.profiles == "" {
		done <- nil
		return done
	}
	file := filepath.Join(b.options.profiles, name+".pprof")
	go func() { done <- b.profile(ctx, fmt.Sprintf("profile?seconds=%d", seconds), file) }()
	return done
}

// addCosts adds the costs per pod, measured until the system has settled.
func (b *bench) addCosts(ctx context.Context, scenario string, c *costs, before state) error {
	settled, err := b.world.settle(ctx)
	if err != nil {
		return err
	}
	after, err := b.state(ctx)
	if err != nil {
		return err
	}
	n := float64(c.pods)
	b.addLegs(scenario, c.pods, before.exported, after.exported)
	inNB := after.nb.minus(before.nb)
	c.transactions, c.northdInSB = inNB.CMS, after.sb.minus(before.sb)
	b.add(scenario, "NB transactions per pod", "", float64(c.transactions)/n)
	if b.options.northd {
		b.add(scenario, "ovn-northd's NB transactions per pod", "", float64(inNB.Northd)/n)
	}
	c.writes, c.lists = settled.writes.since(before.served.writes), settled.lists.since(before.served.lists)
	c.writes["POST pods"] -= c.pods
	b.addRequests(scenario, "API writes per pod", c.writes, c.pods)
	b.add(scenario, "API lists", "", float64(c.lists.total()))
	b.add(scenario, "controller CPU per pod", "ms", milliseconds(after.cpu[controller]-before.cpu[controller])/n)
	b.add(scenario, "  until annotated", "ms", milliseconds(c.cpu)/n)
	c.read, c.written = after.read-before.read, after.written-before.written
	b.add(scenario, "controller receives per pod", "kB", float64(c.read)/n/1e3)
	b.add(scenario, "controller sends per pod", "kB", float64(c.written)/n/1e3)
	if allocated, ok := after.exported.value("go_memstats_mallocs_total"); ok {
		earlier, _ := before.exported.value("go_memstats_mallocs_total")
		c.allocations = allocated - earlier
		b.add(scenario, "controller allocations per pod", "", c.allocations/n)
	}
	return nil
}

// addGrowth adds the growth of the costs per pod since the first burst. Costs that depend on the size of a burst are compared with
// the first burst of the same size.
func (b *bench) addGrowth(scenario string, c costs) {
	if len(b.bursts) == 0 {
		return
	}
	first := b.bursts[0]
	b.add(scenario, "controller CPU until annotated, against the first burst", "×", quotient(perPod(c, c.cpu), perPod(first, first.cpu)))
	b.add(scenario, "controller allocations, against the first burst", "×", quotient(perPod(c, c.allocations), perPod(first, first.allocations)))
	if i := slices.IndexFunc(b.bursts, func(other costs) bool { return other.pods == c.pods }); i >= 0 {
		b.add(scenario, "created to port in NB, p50, against the first burst of this size", "×", ratio(c.committed, b.bursts[i].committed))
		if b.options.northd {
			b.add(scenario, "CPU of ovn-northd until all ports are in SB, against the first burst of this size", "×", ratio(c.northdBound, b.bursts[i].northdBound))
		}
	}
}

func perPod[T ~int | ~int64 | ~float64](c costs, value T) float64 {
	return float64(value) / float64(c.pods)
}

// flat measures the costs per pod again with many existing pods: in another burst of the first one's size, and one by one.
func (b *bench) flat(ctx context.Context) error {
	if err := b.burst(ctx, b.bursts[0].pods); err != nil {
		return err
	}
	return b.serial(ctx)
}

// addRequests adds requests per pod or node: their sum, and each kind.
func (b *bench) addRequests(scenario, metric string, all requests, n int) {
	b.add(scenario, metric, "", float64(all.total())/float64(n))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if all[key] > 0 {
			b.add(scenario, "  "+key, "", float64(all[key])/float64(n))
		}
	}
}

// addCPU adds the CPU time per pod of all processes except the controller.
func (b *bench) addCPU(scenario string, n int, before, after map[string]time.Duration) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if spent := after[name] - before[name]; name != controller && spent > 0 {
			b.add(scenario, "CPU of "+name+" per pod", "ms", milliseconds(spent)/float64(n))
		}
	}
}

// atRest is the delay before a second measurement of the memory, made where there are at least manyPods pods.
const (
	atRest   = 20 * time.Second
	manyPods = 5000
)

func (b *bench) addMemory(ctx context.Context, scenario string) error {
	resident, err := residentBytes(b.leader.pid())
	if err != nil {
		return err
	}
	b.add(scenario, "controller RSS", "MB", megabytes(resident))
	if len(b.pods) >= manyPods {
		if err := b.addMemoryAtRest(ctx, scenario); err != nil {
			return err
		}
	}
	heap, err := b.liveHeap(ctx)
	if heap != 0 {
		b.add(scenario, "controller live heap", "MB", heap/1e6)
	}
	return errors.Join(err, b.addScrape(ctx, scenario))
}

// addMemoryAtRest adds the resident memory after the system had time to return memory to the kernel.
func (b *bench) addMemoryAtRest(ctx context.Context, scenario string) error {
	select {
	case <-time.After(atRest):
	case <-ctx.Done():
		return ctx.Err()
	}
	resident, err := residentBytes(b.leader.pid())
	b.add(scenario, "controller RSS, "+atRest.String()+" later", "MB", megabytes(resident))
	return err
}
