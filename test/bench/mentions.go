// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// mentions waits for changes that contain certain texts: of a column in a database, or of OpenFlow flows.
type mentions struct {
	mu     sync.Mutex
	wanted map[string]chan time.Time // by the text that the change must contain
	err    error
}

func newMentions() *mentions { return &mentions{wanted: map[string]chan time.Time{}} }

// mention monitors a column of the southbound database until ctx ends.
func (w *world) mention(ctx context.Context, table, column string) (*mentions, error) {
	return w.mentionIn(ctx, "sb", southbound, table, column)
}

// mentionIn monitors a column of a database until ctx ends.
func (w *world) mentionIn(ctx context.Context, socket, db, table, column string) (*mentions, error) {
	conn, err := jsonrpc.Dial(ctx, w.socket(socket))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", db, err)
	}
	request := map[string]any{table: map[string]any{
		"columns": []string{column}, "select": map[string]bool{"initial": false, "delete": false, "insert": true, "modify": true},
	}}
	var none any
	if err := conn.Call("monitor", []any{db, "bench-mentions-" + table, request}, &none); err != nil {
		conn.Close()
		return nil, fmt.Errorf("monitor %s: %w", table, err)
	}
	m := newMentions()
	go func() {
		defer conn.Close()
		for {
			notification, err := conn.Receive()
			m.hear(notification.Params, err)
			if err != nil {
				return
			}
		}
	}()
	return m, nil
}

func (m *mentions) hear(change []byte, err error) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	for text, heard := range m.wanted {
		if err != nil || bytes.Contains(change, []byte(text)) {
			if err == nil {
				heard <- now
			}
			close(heard)
			delete(m.wanted, text)
		}
	}
}

// expect returns a channel that receives the time of the next change that contains text. It is closed if the connection fails.
func (m *mentions) expect(text string) <-chan time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	heard := make(chan time.Time, 1)
	if m.err != nil {
		close(heard)
	} else {
		m.wanted[text] = heard
	}
	return heard
}

// sign is a text that appears in the southbound database because of a change, and the monitor that reports it.
type sign struct {
	in   *mentions
	text string
}

// until returns the time from the beginning of do until the southbound database has all signs.
func until(ctx context.Context, signs []sign, do func() error) (time.Duration, error) {
	began, took := time.Now(), time.Duration(0)
	heard := make([]<-chan time.Time, len(signs))
	for i, s := range signs {
		heard[i] = s.in.expect(s.text)
	}
	if err := do(); err != nil {
		return 0, err
	}
	for i, s := range signs {
		select {
		case at, ok := <-heard[i]:
			if !ok {
				return 0, fmt.Errorf("wait for %s in the southbound database: %w", s.text, s.in.err)
			}
			took = max(took, at.Sub(began))
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for %s in the southbound database: %w", s.text, context.Cause(ctx))
		}
	}
	return took, nil
}

// probe returns the nth repetition of a change, and the signs of that change.
type probe func(n int) (signs []sign, do func() error)

// probed repeats a change, each time after the previous one has reached the southbound database, and adds the cost of one change.
func (b *bench) probed(ctx context.Context, scenario, what, users string, times int, change probe) (networkCosts, error) {
	took := make([]time.Duration, 0, times)
	c, err := b.costOf(ctx, scenario, what, times, requests{users: times}, func() error {
		for i := range times {
			signs, do := change(i)
			d, err := until(ctx, signs, do)
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		return nil
	})
	if err != nil {
		return c, err
	}
	c.toSB = medianOf(took)
	b.add(scenario, what+": to SB, p50", "ms", milliseconds(c.toSB))
	return c, nil
}

// addAgainst adds the ratios of the costs of one change here to its costs in an empty cluster.
func (b *bench) addAgainst(scenario string, here, empty networkCosts) {
	for _, growth := range []struct {
		what       string
		here, then float64
	}{
		{"NB transactions", here.transactions, empty.transactions}, {"NB rows written", here.rows, empty.rows},
		{"controller allocations", here.allocations, empty.allocations},
		{"CPU of ovn-northd", milliseconds(here.northd), milliseconds(empty.northd)},
		{"to SB, p50", milliseconds(here.toSB), milliseconds(empty.toSB)},
	} {
		b.add(scenario, here.what+": "+growth.what+", against an empty cluster", "×", quotient(growth.here, growth.then))
	}
}

// errPaused is the error of scenarios that need the southbound database.
var errPaused = errors.New("ovn-northd has to run: leave -northd on")

// medianCosts returns the median of each kind of cost.
func medianCosts(rounds []networkCosts) networkCosts {
	c := networkCosts{what: rounds[0].what}
	c.transactions = medianBy(rounds, func(c networkCosts) float64 { return c.transactions })
	c.rows = medianBy(rounds, func(c networkCosts) float64 { return c.rows })
	c.allocations = medianBy(rounds, func(c networkCosts) float64 { return c.allocations })
	c.northd = medianBy(rounds, func(c networkCosts) time.Duration { return c.northd })
	c.toSB = medianBy(rounds, func(c networkCosts) time.Duration { return c.toSB })
	return c
}

func medianBy[T cmp.Ordered](rounds []networkCosts, value func(networkCosts) T) T {
	values := make([]T, 0, len(rounds))
	for _, c := range rounds {
		values = append(values, value(c))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func (b *bench) addMedians(scenario string, c networkCosts) {
	b.add(scenario, c.what+": NB transactions, median", "", c.transactions)
	b.add(scenario, c.what+": NB rows written, median", "", c.rows)
	b.add(scenario, c.what+": controller allocations, median", "", c.allocations)
	b.add(scenario, c.what+": CPU of ovn-northd, median", "ms", milliseconds(c.northd))
	b.add(scenario, c.what+": to SB, median", "ms", milliseconds(c.toSB))
}
