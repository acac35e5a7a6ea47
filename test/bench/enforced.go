// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// probeInterval is the time between two probes, and so the resolution of the last leg.
	probeInterval = time.Millisecond
	// restTime is longer than ovn-northd's pause after a computation, so that no change waits for the end of an earlier one.
	restTime = 500 * time.Millisecond
	// enforcedWithin is the time after which a change counts as never enforced.
	enforcedWithin = time.Minute
)

// enforce measures the time from the write of a policy, an endpoint or a label until the first packet is treated accordingly on a
// chassis. It compares that time with the time of the same change written to NB directly.
func (b *bench) enforce(ctx context.Context) error {
	if !b.options.northd {
		return errPaused
	}
	e, err := b.newEnforcement(ctx)
	if err != nil {
		return err
	}
	var last background
	for _, size := range b.options.backgrounds {
		if err := b.extend(ctx, last, size); err != nil {
			return err
		}
		if err := b.idle(ctx); err != nil {
			return err
		}
		last = size
		floor, err := e.measureAll(ctx, size.String()+", NB directly", e.families(directChanger{e}), nil)
		if err != nil {
			return err
		}
		profiled := b.startProfile(ctx, fmt.Sprintf("enforced-%d", size.pods), 10*b.options.rounds)
		if _, err := e.measureAll(ctx, size.String(), e.families(apiChanger{e}), floor); err != nil {
			return err
		}
		if err := <-profiled; err != nil {
			return err
		}
	}
	return nil
}

// change is one write and its effect.
type change struct {
	what string
	do   func(ctx context.Context) error
	// nb, sb and flow are the texts that appear in the changed rows, and in the changed OpenFlow flow.
	nb, sb sign
	flow   string
	// sent are the packets that show the effect: their outcome becomes that of wanted.
	sent   stream
	wanted outcome
}

// family is a group of changes that are repeated in rounds. setUp, reset and tearDown run before the first round, after each round,
// and after the last one.
type family struct {
	setUp, reset, tearDown func(ctx context.Context) error
	changes                func(round int) []change
}

// legs are the times between the events of one change, in their order, and the total. answered is the time of the request, which is
// a part of nb.
type legs struct{ answered, nb, sb, flow, packet, total time.Duration }

// enforcedLegs are the legs and their names in the report.
var enforcedLegs = []struct {
	name string
	of   func(legs) time.Duration
}{
	{"  request answered", func(l legs) time.Duration { return l.answered }},
	{"  request to NB", func(l legs) time.Duration { return l.nb }},
	{"  NB to SB", func(l legs) time.Duration { return l.sb }},
	{"  SB to flow", func(l legs) time.Duration { return l.flow }},
	{"  flow to packet", func(l legs) time.Duration { return l.packet }},
}

// measureAll runs the rounds of all families, adds their numbers, and returns the median total of each change. floor holds the
// medians to compare with.
func (e *enforcement) measureAll(ctx context.Context, scenario string, families []family, floor map[string]time.Duration) (map[string]time.Duration, error) {
	medians := map[string]time.Duration{}
	for _, f := range families {
		measured, order, err := e.repeat(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, what := range order {
			medians[what] = e.add(scenario, what, measured[what], floor[what])
		}
	}
	return medians, nil
}

// repeat runs the rounds of one family. It returns the legs of each change, and the order of the changes.
func (e *enforcement) repeat(ctx context.Context, f family) (measured map[string][]legs, order []string, err error) {
	measured = map[string][]legs{}
	if err := e.then(ctx, f.setUp); err != nil {
		return nil, nil, err
	}
	for round := range e.bench.options.rounds {
		for _, c := range f.changes(round) {
			l, err := e.measure(ctx, c)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", c.what, err)
			}
			if round == 0 {
				order = append(order, c.what)
			}
			measured[c.what] = append(measured[c.what], l)
		}
		if err := e.then(ctx, f.reset); err != nil {
			return nil, nil, err
		}
	}
	return measured, order, e.then(ctx, f.tearDown)
}

// then runs a step that is not measured, if there is one, and waits for its end.
func (e *enforcement) then(ctx context.Context, step func(ctx context.Context) error) error {
	if step == nil {
		return nil
	}
	if err := step(ctx); err != nil {
		return err
	}
	return e.bench.idle(ctx)
}

// rest waits until ovn-northd and the chassis have processed everything, and until ovn-northd's pause is over.
func (e *enforcement) rest(ctx context.Context) error {
	for _, step := range []func() error{
		func() error { return pause(ctx, restTime) },
		func() error { return e.bench.world.caughtUp(ctx, "hv_cfg") },
		func() error { return pause(ctx, restTime) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// idleTime is the time without a transaction in NB after which the system under test has nothing left to write.
const idleTime = 2 * time.Second

// idle waits until the system under test, ovn-northd and the chassis have nothing left to do. Unlike settle it watches NB, because
// policies cause no API writes.
func (b *bench) idle(ctx context.Context) error {
	for last := -1; ; {
		count, err := b.world.commits["nb"].transactions()
		if err != nil {
			return err
		}
		if count.CMS == last {
			return b.world.caughtUp(ctx, "hv_cfg")
		}
		last = count.CMS
		if err := pause(ctx, idleTime); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// measure makes one change while it sends probes, and returns when the first probe has the wanted outcome and the rows and the flow
// have been seen.
func (e *enforcement) measure(ctx context.Context, c change) (legs, error) {
	ctx, stop := context.WithTimeoutCause(ctx, enforcedWithin, fmt.Errorf("not enforced after %s", enforcedWithin))
	defer stop()
	if err := e.rest(ctx); err != nil {
		return legs{}, err
	}
	if err := e.expectOld(ctx, c); err != nil {
		return legs{}, err
	}
	return e.follow(ctx, c)
}

// expectOld checks that a packet does not have the outcome of the change yet.
func (e *enforcement) expectOld(ctx context.Context, c change) error {
	e.prober.drain()
	if err := e.prober.send(c.sent); err != nil {
		return err
	}
	select {
	case o := <-e.prober.outcomes:
		if o.same(c.wanted) {
			return fmt.Errorf("before the change a packet already %s", o)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a packet before the change: %w", context.Cause(ctx))
	}
}

// follow makes the change and returns its legs.
func (e *enforcement) follow(ctx context.Context, c change) (l legs, err error) {
	events := []struct {
		name string
		seen <-chan time.Time
		leg  *time.Duration
	}{
		{"row in NB with " + c.nb.text, c.nb.in.expect(c.nb.text), &l.nb},
		{"row in SB with " + c.sb.text, c.sb.in.expect(c.sb.text), &l.sb},
		{"flow with " + c.flow, e.chassis.flows.expect(c.flow), &l.flow},
	}
	began := time.Now()
	answered, enforced, err := e.probeUntil(ctx, c)
	if err != nil {
		return l, err
	}
	last := began
	for _, event := range events {
		select {
		case at := <-event.seen:
			*event.leg, last = at.Sub(last), at
		case <-ctx.Done():
			return l, fmt.Errorf("wait for a %s: %w", event.name, context.Cause(ctx))
		}
	}
	l.answered, l.packet, l.total = answered.Sub(began), enforced.Sub(last), enforced.Sub(began)
	return l, nil
}

// probeUntil makes the change and sends probes until one has the wanted outcome. It returns when the change was answered, and when
// that outcome was seen.
func (e *enforcement) probeUntil(ctx context.Context, c change) (answered, enforced time.Time, err error) {
	done := make(chan error, 1)
	go func() {
		err := c.do(ctx)
		answered = time.Now()
		done <- err
	}()
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for answers := done; answers != nil || enforced.IsZero(); {
		select {
		case <-tick.C:
			err = e.prober.send(c.sent)
		case o := <-e.prober.outcomes:
			if enforced.IsZero() && o.same(c.wanted) {
				enforced = o.at
			}
		case err = <-answers:
			answers = nil
		case <-ctx.Done():
			err = fmt.Errorf("wait for a packet: %w", context.Cause(ctx))
		}
		if err != nil {
			return answered, enforced, err
		}
	}
	return answered, enforced, nil
}

// add adds the numbers of a change and returns the median of its totals.
func (e *enforcement) add(scenario, what string, measured []legs, floor time.Duration) time.Duration {
	sorted := func(of func(legs) time.Duration) []time.Duration {
		var all []time.Duration
		for _, l := range measured {
			all = append(all, of(l))
		}
		return slices.Sorted(slices.Values(all))
	}
	total := sorted(func(l legs) time.Duration { return l.total })
	median := percentile(total, 50)
	e.bench.addRatio(scenario, what+", p50", "ms", milliseconds(median), ratio(median, floor))
	e.bench.add(scenario, what+", max", "ms", milliseconds(slices.Max(total)))
	for _, leg := range enforcedLegs {
		all := sorted(leg.of)
		e.bench.add(scenario, leg.name+", p50", "ms", milliseconds(percentile(all, 50)))
		e.bench.add(scenario, leg.name+", max", "ms", milliseconds(slices.Max(all)))
	}
	return median
}
