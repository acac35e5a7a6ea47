// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// restart repeatedly kills the controller and measures how long a new one takes to serve a new pod. The Lease is released before
// the start.
func (b *bench) restart(ctx context.Context) error {
	scenario := fmt.Sprintf("restart with %d", len(b.pods))
	var served []time.Duration
	for range b.options.restarts {
		if err := b.crash(ctx); err != nil {
			return err
		}
		begin := time.Now()
		if err := b.startLeader(b.leader.slot); err != nil {
			return err
		}
		if err := b.firstPod(ctx); err != nil {
			return err
		}
		served = append(served, time.Since(begin))
		if _, err := b.world.settle(ctx); err != nil {
			return err
		}
	}
	b.add(scenario, "exec to the first new pod, median", "s", medianOf(served).Seconds())
	b.add(scenario, "exec to the first new pod, longest", "s", slices.Max(served).Seconds())
	spent, err := cpuTime(b.leader.pid())
	if err != nil {
		return err
	}
	b.add(scenario, "controller CPU, start to settled", "s", spent.Seconds())
	return b.addMemory(ctx, scenario)
}

// firstPod creates a pod and waits until it has its network.
func (b *bench) firstPod(ctx context.Context) error {
	names := b.group("first", 1)
	if err := b.loader.create(ctx, names); err != nil {
		return err
	}
	if err := b.loader.await(ctx, names); err != nil {
		return fmt.Errorf("%w\n%s", err, b.leader.tail())
	}
	b.pods = append(b.pods, names...)
	return nil
}

// takeover kills the leader while a standby has warm caches, and does not release the Lease. It creates a pod at once, so that the
// pod and all others have to wait for the standby.
func (b *bench) takeover(ctx context.Context) error {
	scenario := fmt.Sprintf("takeover with %d", len(b.pods))
	var waited, served []time.Duration
	lists, writes := requests{}, requests{}
	for range b.options.restarts {
		standby, err := b.startInstance(1 - b.leader.slot)
		if err != nil {
			return err
		}
		if err := idle(ctx, standby); err != nil {
			return err
		}
		before, err := b.world.settle(ctx)
		if err != nil {
			return err
		}
		b.leader.kill()
		killed := time.Now()
		b.leads(standby)
		if err := b.firstPod(ctx); err != nil {
			return err
		}
		annotated := b.loader.annotated.at(b.pods[len(b.pods)-1])
		acquired, err := b.acquired(ctx)
		if err != nil {
			return err
		}
		if acquired.Before(killed) {
			return fmt.Errorf("the Lease %s was taken before the leader was killed: another system serves pods", b.options.lease)
		}
		waited, served = append(waited, acquired.Sub(killed)), append(served, annotated.Sub(acquired))
		settled, err := b.world.settle(ctx)
		if err != nil {
			return err
		}
		lists.add(settled.lists.since(before.lists))
		writes.add(settled.writes.since(before.writes))
		writes["POST pods"]--
	}
	b.add(scenario, "killed to Lease taken, median", "s", medianOf(waited).Seconds())
	b.add(scenario, "Lease taken to the first new pod, median", "s", medianOf(served).Seconds())
	b.add(scenario, "Lease taken to the first new pod, longest", "s", slices.Max(served).Seconds())
	b.addRequests(scenario, "API lists per takeover", lists, b.options.restarts)
	b.addRequests(scenario, "API writes per takeover, including the pod's", writes, b.options.restarts)
	return b.addMemory(ctx, scenario)
}

// idleShare is the highest CPU share of a standby whose caches are warm.
const idleShare = 0.03

// idle waits until the CPU use of a process is at most idleShare.
func idle(ctx context.Context, i *instance) error {
	last, err := cpuTime(i.pid())
	for err == nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(quiet):
		}
		spent, failed := cpuTime(i.pid())
		if failed == nil && spent > 0 && spent-last <= time.Duration(idleShare*float64(quiet)) {
			return nil
		}
		last, err = spent, failed
	}
	return err
}
