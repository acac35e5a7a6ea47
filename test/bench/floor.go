// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// floors holds the best values that the machine can reach without any network. The results of the system under test are compared
// with them.
type floors struct {
	// perPod is the time per pod of a parallel creation and one patch; serial is the time of one pod after another.
	perPod, serial time.Duration
	// removal is the time per pod of deletions.
	removal time.Duration
}

// rawBatch is the number of ports per transaction of the batched floor.
const rawBatch = 100

// measureFloors measures the floors. It runs before the system under test starts.
func (b *bench) measureFloors(ctx context.Context) error {
	if err := b.apiFloor(ctx); err != nil {
		return err
	}
	if err := b.world.pause(); err != nil {
		return err
	}
	if err := errors.Join(b.databaseFloor(ctx), b.world.resume()); err != nil {
		return err
	}
	return b.world.northdCaughtUp(ctx)
}

func (b *bench) apiFloor(ctx context.Context) error {
	l := b.loader
	if err := b.createAndAnnotate(ctx, podNames("floor-warm", warmUp)); err != nil {
		return err
	}
	names := podNames("floor", b.options.floorPods)
	before, err := b.world.cpu()
	if err != nil {
		return err
	}
	if err := b.createAndAnnotate(ctx, names); err != nil {
		return err
	}
	after, err := b.world.cpu()
	if err != nil {
		return err
	}
	b.floors.perPod = l.span(names) / time.Duration(len(names))
	b.add("floor", "API create + patch per pod", "pods/s", rate(b.floors.perPod))
	sorted := l.latencies(names)
	b.addCPU("floor", len(names), before, after)
	b.add("floor", "created to annotated, p50", "ms", milliseconds(percentile(sorted, 50)))
	b.add("floor", "created to annotated, p99", "ms", milliseconds(percentile(sorted, 99)))

	serial := podNames("floor-serial", b.options.serial)
	asked, err := b.world.served(ctx)
	if err != nil {
		return err
	}
	for i, name := range serial {
		if err := l.createOne(ctx, i, name); err != nil {
			return err
		}
		if err := l.annotate(ctx, name); err != nil {
			return err
		}
		if err := l.await(ctx, serial[:i+1]); err != nil {
			return err
		}
	}
	if err := b.addPolicies(ctx, "floor", len(serial), asked); err != nil {
		return err
	}
	sorted = l.latencies(serial)
	b.floors.serial = percentile(sorted, 50)
	b.add("floor", "API create + patch, one at a time, p50", "ms", milliseconds(b.floors.serial))
	b.add("floor", "API create + patch, one at a time, p99", "ms", milliseconds(percentile(sorted, 99)))

	begin := time.Now()
	if err := l.remove(ctx, names); err != nil {
		return err
	}
	b.floors.removal = time.Since(begin) / time.Duration(len(names))
	b.add("floor", "API delete", "pods/s", rate(b.floors.removal))
	return l.remove(ctx, append(serial, podNames("floor-warm", warmUp)...))
}

// createAndAnnotate runs a burst without a controller: the driver patches each pod as soon as it is created.
func (b *bench) createAndAnnotate(ctx context.Context, names []string) error {
	made := make(chan string, len(names))
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(made)
		return b.loader.each(within, names, func(ctx context.Context, i int, name string) error {
			if err := b.loader.createOne(ctx, i, name); err != nil {
				return err
			}
			made <- name
			return nil
		})
	})
	for range b.options.parallel {
		group.Go(func() error {
			for name := range made {
				if err := b.loader.annotate(within, name); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return b.loader.await(ctx, names)
}

// databaseFloor inserts ports into a logical switch of its own, one per transaction and many per transaction. ovn-northd is paused.
func (b *bench) databaseFloor(ctx context.Context) error {
	conn, err := jsonrpc.Dial(ctx, b.world.socket("nb"))
	if err != nil {
		return fmt.Errorf("dial the northbound database: %w", err)
	}
	defer conn.Close()
	logicalSwitch := map[string]any{"op": "insert", "table": "Logical_Switch", "row": map[string]any{"name": "floor"}, "uuid-name": "s"}
	if err := transact(conn, logicalSwitch); err != nil {
		return err
	}
	for _, floor := range []struct {
		name               string
		batch, transaction int
	}{
		{"raw NB, one port per transaction", 1, 2000}, {"raw NB, 100 ports per transaction", rawBatch, 100},
	} {
		begin := time.Now()
		for range floor.transaction {
			if err := transact(conn, portOperations(floor.batch)...); err != nil {
				return err
			}
		}
		b.add("floor", floor.name, "ports/s", rate(time.Since(begin)/time.Duration(floor.batch*floor.transaction)))
	}
	return transact(conn, map[string]any{"op": "delete", "table": "Logical_Switch", "where": floorSwitch})
}

// floorSwitch is the condition that selects the floor's switch.
var floorSwitch = [][]string{{"name", "==", "floor"}}

// portOperations returns operations that insert n ports and add them to the floor's switch.
func portOperations(n int) []any {
	var operations []any
	var ports [][]string
	for range n {
		id := uuid.NewString()
		ports = append(ports, []string{"uuid", id})
		operations = append(operations, map[string]any{
			"op": "insert", "table": "Logical_Switch_Port", "uuid": id,
			"row": map[string]any{"name": id, "addresses": "0a:58:0a:10:ff:fe 10.16.255.254"},
		})
	}
	return append(operations, map[string]any{
		"op": "mutate", "table": "Logical_Switch", "where": floorSwitch,
		"mutations": []any{[]any{"ports", "insert", []any{"set", ports}}},
	})
}

// transact runs operations on the northbound database in one transaction (RFC 7047, section 4.1.3).
func transact(conn *jsonrpc.Conn, operations ...any) error {
	var results []json.RawMessage
	if err := conn.Call("transact", append([]any{northbound}, operations...), &results); err != nil {
		return fmt.Errorf("transact: %w", err)
	}
	for _, raw := range results {
		var result struct{ Error, Details string }
		if err := json.Unmarshal(raw, &result); err == nil && result.Error != "" {
			return fmt.Errorf("transact: %s: %s", result.Error, result.Details)
		}
	}
	return nil
}
