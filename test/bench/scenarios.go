// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"
)

// warmUp is how many pods come and go before anything is measured.
const warmUp = 100

// prepare starts the system under test and gets it warm.
func (b *bench) prepare(ctx context.Context) error {
	w := b.world
	if err := w.createOVNCluster(ctx); err != nil {
		return err
	}
	if err := w.startController(b.options.kiln); err != nil {
		return err
	}
	if err := w.awaitController(); err != nil {
		return err
	}
	names := podNames("warm", warmUp)
	if err := b.loader.create(ctx, names); err != nil {
		return err
	}
	if err := b.loader.await(ctx, names); err != nil {
		return fmt.Errorf("warm up: %w\n%s", err, w.running[controller].tail())
	}
	var err error
	if b.ports, err = watchRows(ctx, w.socket("nb"), northbound, "Logical_Switch_Port", "name"); err != nil {
		return err
	}
	if b.bindings, err = watchRows(ctx, w.socket("sb"), southbound, "Port_Binding", "logical_port"); err != nil {
		return err
	}
	if err := b.loader.remove(ctx, names); err != nil {
		return err
	}
	if err := b.ports.awaitNames(ctx, portNames(names), false); err != nil {
		return err
	}
	if _, err := w.settle(ctx); err != nil {
		return err
	}
	if !b.options.northd {
		if err := w.pause(); err != nil {
			return err
		}
	}
	resident, err := residentBytes(w.pids[controller])
	b.add("start", "controller RSS, no pods", "MB", megabytes(resident))
	return err
}

// state is what the counters say at one time.
type state struct {
	cpu          map[string]time.Duration
	transactions transactions
	writes       writes
}

func (b *bench) state(ctx context.Context) (state, error) {
	var s state
	var err error
	if s.transactions, err = countCommits(b.world.file("nb")); err != nil {
		return s, err
	}
	if s.writes, err = b.world.writes(ctx); err != nil {
		return s, err
	}
	s.cpu, err = b.world.cpu()
	return s, err
}

// burst creates pods as fast as possible, on top of those there are.
func (b *bench) burst(ctx context.Context, n int) error {
	scenario := fmt.Sprintf("burst %d on %d", n, len(b.pods))
	names := podNames(fmt.Sprintf("burst%d", b.bursts), n)
	b.bursts++
	before, err := b.state(ctx)
	if err != nil {
		return err
	}
	profiled := b.startProfile(ctx, n)
	if err := b.loader.create(ctx, names); err != nil {
		return err
	}
	if err := b.loader.await(ctx, names); err != nil {
		return err
	}
	spent, err := b.world.cpu()
	if err != nil {
		return err
	}
	written, err := b.world.writes(ctx)
	if err != nil {
		return err
	}
	onPath := written.since(before.writes).total() - n
	b.pods = append(b.pods, names...)
	span, sorted := b.loader.span(names), b.loader.latencies(names)
	b.addRatio(scenario, "rate", "pods/s", float64(n)/span.Seconds(), span.Seconds()/(b.floors.perPod.Seconds()*float64(n)))
	b.add(scenario, "created to annotated, p50", "ms", milliseconds(percentile(sorted, 50)))
	b.add(scenario, "created to annotated, p99", "ms", milliseconds(percentile(sorted, 99)))
	if err := b.ports.awaitNames(ctx, portNames(names), true); err != nil {
		return err
	}
	committed := b.committed(names)
	b.add(scenario, "  created to port in NB, p50", "ms", milliseconds(percentile(committed, 50)))
	b.add(scenario, "  created to port in NB, p99", "ms", milliseconds(percentile(committed, 99)))
	if err := b.bound(ctx, scenario, names); err != nil {
		return err
	}
	if err := <-profiled; err != nil {
		return err
	}
	b.add(scenario, "API writes per pod until annotated", "", float64(onPath)/float64(n))
	return b.addCosts(ctx, scenario, n, before, spent)
}

// committed are the times from the creation of pods until their ports were in the northbound database, in ascending order.
func (b *bench) committed(names []string) []time.Duration {
	all := make([]time.Duration, len(names))
	for i, name := range names {
		all[i] = b.ports.came(name + "." + namespace).Sub(b.loader.createdAt(name))
	}
	slices.Sort(all)
	return all
}

// bound waits until ovn-northd has brought all ports to the southbound database.
func (b *bench) bound(ctx context.Context, scenario string, names []string) error {
	if !b.options.northd {
		return nil
	}
	if err := b.bindings.awaitNames(ctx, portNames(names), true); err != nil {
		return err
	}
	first, last := time.Now(), time.Time{}
	for _, name := range names {
		if created := b.loader.createdAt(name); created.Before(first) {
			first = created
		}
		if came := b.bindings.came(name + "." + namespace); came.After(last) {
			last = came
		}
	}
	b.add(scenario, "all ports in SB after", "s", last.Sub(first).Seconds())
	return nil
}

// startProfile takes a profile of the controller's CPU for about as long as the burst takes, when it is asked for.
func (b *bench) startProfile(ctx context.Context, n int) <-chan error {
	done := make(chan error, 1)
	if b.options.profiles == "" {
		done <- nil
		return done
	}
	seconds := min(max(2, n/150), 120)
	file := filepath.Join(b.options.profiles, fmt.Sprintf("cpu-%d-on-%d.pprof", n, len(b.pods)))
	go func() { done <- b.world.profile(ctx, fmt.Sprintf("profile?seconds=%d", seconds), file) }()
	return done
}

// addCosts adds what a burst has cost per pod: until its last pod was annotated, and until nothing was left to do.
func (b *bench) addCosts(ctx context.Context, scenario string, n int, before state, annotated map[string]time.Duration) error {
	settled, err := b.world.settle(ctx)
	if err != nil {
		return err
	}
	after, err := b.state(ctx)
	if err != nil {
		return err
	}
	perPod := func(count int) float64 { return float64(count) / float64(n) }
	committed := after.transactions.minus(before.transactions)
	b.add(scenario, "NB transactions per pod", "", perPod(committed.CMS))
	if b.options.northd {
		b.add(scenario, "ovn-northd's NB transactions per pod", "", perPod(committed.Northd))
	}
	written := settled.since(before.writes)
	written["POST pods"] -= n
	b.add(scenario, "API writes per pod", "", perPod(written.total()))
	for _, key := range slices.Sorted(maps.Keys(written)) {
		if written[key] > 0 {
			b.add(scenario, "  "+key, "", perPod(written[key]))
		}
	}
	b.add(scenario, "controller CPU per pod", "ms", milliseconds(after.cpu[controller]-before.cpu[controller])/float64(n))
	path := milliseconds(annotated[controller]-before.cpu[controller]) / float64(n)
	b.add(scenario, "  until annotated", "ms", path)
	if b.firstCost == 0 {
		b.firstCost = path
	} else {
		b.add(scenario, "  until annotated, against the first burst", "×", path/b.firstCost)
	}
	b.addCPU(scenario, n, before.cpu, annotated)
	return b.addMemory(ctx, scenario)
}

// addCPU adds what everything but the controller has spent per pod.
func (b *bench) addCPU(scenario string, n int, before, after map[string]time.Duration) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if spent := after[name] - before[name]; name != controller && spent > 0 {
			b.add(scenario, "CPU of "+name+" per pod", "ms", milliseconds(spent)/float64(n))
		}
	}
}

func (b *bench) addMemory(ctx context.Context, scenario string) error {
	resident, err := residentBytes(b.world.pids[controller])
	if err != nil {
		return err
	}
	b.add(scenario, "controller RSS", "MB", megabytes(resident))
	heap, err := b.world.liveHeap(ctx)
	b.add(scenario, "controller live heap", "MB", megabytes(heap))
	return err
}

// serial creates one pod after another, each once its predecessor has its network.
func (b *bench) serial(ctx context.Context) error {
	scenario := fmt.Sprintf("serial on %d", len(b.pods))
	names := podNames("serial", b.options.serial)
	var patched []time.Duration
	for i, name := range names {
		if err := b.loader.createOne(ctx, i, name); err != nil {
			return err
		}
		if err := b.loader.await(ctx, names[i:i+1]); err != nil {
			return err
		}
		if err := b.ports.awaitNames(ctx, portNames(names[i:i+1]), true); err != nil {
			return err
		}
		came := b.ports.came(name + "." + namespace)
		patched = append(patched, b.loader.annotatedAt(name).Sub(came))
	}
	b.pods = append(b.pods, names...)
	sorted := b.loader.latencies(names)
	p50 := percentile(sorted, 50)
	b.addRatio(scenario, "created to annotated, p50", "ms", milliseconds(p50), p50.Seconds()/b.floors.serial.Seconds())
	b.add(scenario, "created to annotated, p99", "ms", milliseconds(percentile(sorted, 99)))
	committed := b.committed(names)
	slices.Sort(patched)
	b.add(scenario, "  created to port in NB, p50", "ms", milliseconds(percentile(committed, 50)))
	b.add(scenario, "  port in NB to annotated, p50", "ms", milliseconds(percentile(patched, 50)))
	_, err := b.world.settle(ctx)
	return err
}

// remove deletes pods as fast as possible and waits until their ports are gone.
func (b *bench) remove(ctx context.Context, n int) error {
	n = min(n, len(b.pods))
	scenario := fmt.Sprintf("delete %d of %d", n, len(b.pods))
	names := b.pods[:n]
	before, err := b.state(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := b.loader.remove(ctx, names); err != nil {
		return err
	}
	answered := time.Now()
	if err := b.ports.awaitNames(ctx, portNames(names), false); err != nil {
		return err
	}
	clean := time.Now()
	b.pods = b.pods[n:]
	b.add(scenario, "NB clean after the last delete", "s", clean.Sub(answered).Seconds())
	b.addRatio(scenario, "rate, until NB is clean", "pods/s",
		float64(n)/clean.Sub(begin).Seconds(), clean.Sub(begin).Seconds()/(b.floors.removal.Seconds()*float64(n)))
	settled, err := b.world.settle(ctx)
	if err != nil {
		return err
	}
	after, err := b.state(ctx)
	if err != nil {
		return err
	}
	written := settled.since(before.writes)
	written["DELETE pods"] -= n
	b.add(scenario, "API writes per pod", "", float64(written.total())/float64(n))
	b.add(scenario, "NB transactions per pod", "", float64(after.transactions.minus(before.transactions).CMS)/float64(n))
	b.add(scenario, "controller CPU per pod", "ms", milliseconds(after.cpu[controller]-before.cpu[controller])/float64(n))
	records, err := b.world.countIPs(ctx)
	b.add(scenario, "IP objects left behind", "", float64(records-len(b.pods)))
	return err
}

// restart kills the controller some times and measures how long a new one takes to serve a new pod. The Lease is free by then.
func (b *bench) restart(ctx context.Context) error {
	scenario := fmt.Sprintf("restart with %d", len(b.pods))
	var took []time.Duration
	for i := range b.options.restarts {
		if err := b.world.crash(ctx); err != nil {
			return err
		}
		names := podNames(fmt.Sprintf("restart%d", i), 1)
		begin := time.Now()
		if err := b.world.startController(b.options.kiln); err != nil {
			return err
		}
		if err := b.loader.create(ctx, names); err != nil {
			return err
		}
		if err := b.loader.await(ctx, names); err != nil {
			return fmt.Errorf("restart: %w\n%s", err, b.world.running[controller].tail())
		}
		took = append(took, time.Since(begin))
		b.pods = append(b.pods, names...)
		if _, err := b.world.settle(ctx); err != nil {
			return err
		}
	}
	slices.Sort(took)
	b.add(scenario, "exec to the first new pod, median", "s", percentile(took, 50).Seconds())
	b.add(scenario, "exec to the first new pod, longest", "s", took[len(took)-1].Seconds())
	spent, err := cpuTime(b.world.pids[controller])
	if err != nil {
		return err
	}
	b.add(scenario, "controller CPU, start to settled", "s", spent.Seconds())
	return b.addMemory(ctx, scenario)
}
