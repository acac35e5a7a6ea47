// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// warmUp is the number of pods that are created and deleted before any measurement.
const warmUp = 100

// prepare starts the system under test and warms it up: it waits until the first pods have their network, then deletes them.
func (b *bench) prepare(ctx context.Context) error {
	w := b.world
	if err := w.createOVNCluster(ctx, b.options.datapath); err != nil {
		return err
	}
	if err := b.startLeader(0); err != nil {
		return err
	}
	names := podNames("warm", warmUp)
	if err := b.loader.create(ctx, names); err != nil {
		return err
	}
	if err := b.loader.await(ctx, names); err != nil {
		return fmt.Errorf("warm up: %w\n%s", err, b.leader.tail())
	}
	if err := b.watchDatabases(ctx); err != nil {
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
	if err := w.northdCaughtUp(ctx); err != nil {
		return err
	}
	if !b.options.northd {
		if err := w.pause(); err != nil {
			return err
		}
	}
	resident, err := residentBytes(b.leader.pid())
	b.add("start", "controller RSS, no pods", "MB", megabytes(resident))
	return err
}

func (b *bench) watchDatabases(ctx context.Context) error {
	w := b.world
	for _, watch := range []struct {
		to                          **arrivals
		socket, db, table, nameable string
	}{
		{&b.ports, "nb", northbound, "Logical_Switch_Port", "name"},
		{&b.switches, "nb", northbound, "Logical_Switch", "name"},
		{&b.bindings, "sb", southbound, "Port_Binding", "logical_port"},
	} {
		var err error
		if *watch.to, err = watchRows(ctx, w.socket(watch.socket), watch.db, watch.table, watch.nameable); err != nil {
			return err
		}
	}
	return nil
}

// state is a snapshot of all counters.
type state struct {
	cpu      map[string]time.Duration
	nb, sb   transactions
	served   served
	exported exported
	// read and written are bytes that the leader has received and sent.
	read, written int64
}

func (b *bench) state(ctx context.Context) (state, error) {
	var s state
	var err error
	if s.nb, err = b.world.commits["nb"].transactions(); err != nil {
		return s, err
	}
	if s.sb, err = b.world.commits["sb"].transactions(); err != nil {
		return s, err
	}
	if s.served, err = b.world.served(ctx); err != nil {
		return s, err
	}
	if s.exported, err = scrape(ctx, b.leader.metrics); err != nil {
		return s, err
	}
	if s.read, s.written, err = traffic(b.leader.pid()); err != nil {
		return s, err
	}
	s.cpu, err = b.world.cpu()
	return s, err
}

// group returns n unique pod names for pods that are created together.
func (b *bench) group(what string, n int) []string {
	b.made++
	return podNames(fmt.Sprintf("%s%d", what, b.made), n)
}

// port returns when a pod's port appeared in NB; binding when ovn-northd had written it to SB.
func (b *bench) port(pod string) time.Time    { return b.ports.at(pod + "." + namespace) }
func (b *bench) binding(pod string) time.Time { return b.bindings.at(pod + "." + namespace) }

// serial creates one pod after another, each after the previous one has its network.
func (b *bench) serial(ctx context.Context) error {
	scenario := fmt.Sprintf("serial on %d", len(b.pods))
	names := b.group("serial", b.options.serial)
	before, err := b.state(ctx)
	if err != nil {
		return err
	}
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
	}
	annotated, err := b.world.cpu()
	if err != nil {
		return err
	}
	b.pods = append(b.pods, names...)
	sorted := b.loader.latencies(names)
	p50 := percentile(sorted, 50)
	b.addRatio(scenario, "created to annotated, p50", "ms", milliseconds(p50), ratio(p50, b.floors.serial))
	b.add(scenario, "created to annotated, p99", "ms", milliseconds(percentile(sorted, 99)))
	if err := b.bound(ctx, names); err != nil {
		return err
	}
	committed := b.addSeen(scenario, names)
	if b.firstSerial == 0 {
		b.firstSerial = committed
	} else {
		b.add(scenario, "created to port in NB, p50, against the first pods", "×", ratio(committed, b.firstSerial))
	}
	if err := b.addPolicies(ctx, scenario, len(names), before.served); err != nil {
		return err
	}
	return b.addCosts(ctx, scenario, &costs{pods: len(names), cpu: annotated[controller] - before.cpu[controller]}, before)
}

// addSeen adds the stages of a pod's creation that are visible from outside, and returns the median of the first stage.
func (b *bench) addSeen(scenario string, names []string) time.Duration {
	committed := took(names, b.loader.createdAt, b.port)
	b.add(scenario, "  created to port in NB, p50", "ms", milliseconds(percentile(committed, 50)))
	b.add(scenario, "  created to port in NB, p99", "ms", milliseconds(percentile(committed, 99)))
	annotated := took(names, b.port, b.loader.annotated.at)
	b.add(scenario, "  port in NB to annotated, p50", "ms", milliseconds(percentile(annotated, 50)))
	b.add(scenario, "  port in NB to annotated, p99", "ms", milliseconds(percentile(annotated, 99)))
	if b.options.northd {
		bound := took(names, b.port, b.binding)
		b.add(scenario, "  port in NB to port in SB, p50", "ms", milliseconds(percentile(bound, 50)))
		b.add(scenario, "  port in NB to port in SB, p99", "ms", milliseconds(percentile(bound, 99)))
	}
	return percentile(committed, 50)
}

// bound waits until ovn-northd, if it runs, has written all ports to SB.
func (b *bench) bound(ctx context.Context, names []string) error {
	if !b.options.northd {
		return nil
	}
	return b.bindings.awaitNames(ctx, portNames(names), true)
}

// remove deletes pods as fast as possible and waits until their ports are deleted.
func (b *bench) remove(ctx context.Context) error {
	n := min(b.options.remove, len(b.pods))
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
		float64(n)/clean.Sub(begin).Seconds(), ratio(clean.Sub(begin)/time.Duration(n), b.floors.removal))
	settled, err := b.world.settle(ctx)
	if err != nil {
		return err
	}
	after, err := b.state(ctx)
	if err != nil {
		return err
	}
	written := settled.writes.since(before.served.writes)
	written["DELETE pods"] -= n
	b.addRequests(scenario, "API writes per pod", written, n)
	b.add(scenario, "NB transactions per pod", "", float64(after.nb.minus(before.nb).CMS)/float64(n))
	b.add(scenario, "controller CPU per pod", "ms", milliseconds(after.cpu[controller]-before.cpu[controller])/float64(n))
	records, there, err := b.world.countIPs(ctx)
	if there {
		b.add(scenario, "IP objects left behind", "", float64(records-len(b.pods)))
	}
	return err
}

// percentile returns the smallest of the sorted values that is not exceeded by at least this percentage of them.
func percentile(sorted []time.Duration, percent int) time.Duration {
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}

// ratio of two times; zero when the divisor is zero.
func ratio(a, to time.Duration) float64 { return quotient(a.Seconds(), to.Seconds()) }

// quotient is zero when the divisor is zero.
func quotient(a, by float64) float64 {
	if by == 0 {
		return 0
	}
	return a / by
}

// medianOf returns the median of durations.
func medianOf(all []time.Duration) time.Duration {
	return percentile(slices.Sorted(slices.Values(all)), 50)
}
