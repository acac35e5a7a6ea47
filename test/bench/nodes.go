// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"
)

// quarters is the number of groups of joining nodes. The last group must not cost more than the first.
const quarters = 4

// join creates subnets, and then many nodes at once.
func (b *bench) join(ctx context.Context) error {
	if err := b.createSubnets(ctx, b.options.subnets); err != nil {
		return err
	}
	n := b.options.joining
	scenario := fmt.Sprintf("%d nodes, %d subnets", n, b.options.subnets)
	names, ports := make([]string, n), make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("joining-%05d", i)
		ports[i] = "node-" + names[i]
	}
	l := b.loader
	annotated, err := follow(ctx, b.world.clients.CoreV1().RESTClient(), "nodes", "")
	if err != nil {
		return err
	}
	before, err := b.state(ctx)
	if err != nil {
		return err
	}
	created := make(chan error, 1)
	go func() {
		created <- l.each(ctx, names, func(ctx context.Context, i int, name string) error {
			l.creates(name)
			return b.world.createNode(ctx, name, fmt.Sprintf("172.%d.%d.%d", 16+i/62500, i/250%250, 1+i%250))
		})
	}()
	if err := b.addQuarters(ctx, scenario, annotated, n, before); err != nil {
		return err
	}
	if err := <-created; err != nil {
		return err
	}
	if err := annotated.awaitNames(ctx, names, true); err != nil {
		return err
	}
	if err := b.ports.awaitNames(ctx, ports, true); err != nil {
		return err
	}
	port := func(node string) time.Time { return b.ports.at("node-" + node) }
	b.add(scenario, "all joined after", "s", max(span(names, l.createdAt, annotated.at), span(names, l.createdAt, port)).Seconds())
	b.add(scenario, "created to annotated, p50", "ms", milliseconds(percentile(took(names, l.createdAt, annotated.at), 50)))
	b.add(scenario, "created to annotated, p99", "ms", milliseconds(percentile(took(names, l.createdAt, annotated.at), 99)))
	b.add(scenario, "created to port in NB, p50", "ms", milliseconds(percentile(took(names, l.createdAt, port), 50)))
	if b.options.northd {
		if err := b.bindings.awaitNames(ctx, ports, true); err != nil {
			return err
		}
		bound := func(node string) time.Time { return b.bindings.at("node-" + node) }
		b.add(scenario, "all ports in SB after", "s", span(names, l.createdAt, bound).Seconds())
	}
	return b.addJoined(ctx, scenario, n, before)
}

// addQuarters adds the costs of the controller for each quarter of the nodes, until the last node of the quarter is annotated.
func (b *bench) addQuarters(ctx context.Context, scenario string, annotated *arrivals, n int, before state) error {
	last, begin := before.cpu[controller], time.Now()
	var spent, lasted [quarters]time.Duration
	for q := range quarters {
		if err := annotated.awaitCount(ctx, (q+1)*n/quarters); err != nil {
			return err
		}
		cpu, err := cpuTime(b.leader.pid())
		if err != nil {
			return err
		}
		now := time.Now()
		spent[q], lasted[q] = cpu-last, now.Sub(begin)
		last, begin = cpu, now
		b.add(scenario, fmt.Sprintf("controller CPU per node, up to %d", (q+1)*n/quarters), "ms", milliseconds(spent[q])/float64(n/quarters))
		b.add(scenario, fmt.Sprintf("  time per node, up to %d", (q+1)*n/quarters), "ms", milliseconds(lasted[q])/float64(n/quarters))
	}
	b.add(scenario, "controller CPU, last quarter against the first", "×", ratio(spent[quarters-1], spent[0]))
	b.add(scenario, "time, last quarter against the first", "×", ratio(lasted[quarters-1], lasted[0]))
	return nil
}

// addJoined adds counts per node after the system has settled.
func (b *bench) addJoined(ctx context.Context, scenario string, n int, before state) error {
	settled, err := b.world.settle(ctx)
	if err != nil {
		return err
	}
	after, err := b.state(ctx)
	if err != nil {
		return err
	}
	b.add(scenario, "NB transactions per node", "", float64(after.nb.minus(before.nb).CMS)/float64(n))
	written := settled.writes.since(before.served.writes)
	written["POST nodes"] -= n
	b.addRequests(scenario, "API writes per node", written, n)
	b.add(scenario, "controller CPU per node, until settled", "ms", milliseconds(after.cpu[controller]-before.cpu[controller])/float64(n))
	b.add(scenario, "controller sends per node", "kB", float64(after.written-before.written)/float64(n)/1e3)
	if b.options.northd {
		b.add(scenario, "CPU of ovn-northd per node", "ms", milliseconds(after.cpu[northd]-before.cpu[northd])/float64(n))
	}
	return b.addMemory(ctx, scenario)
}
