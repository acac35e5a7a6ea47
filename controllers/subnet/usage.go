// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Changes of a subnet's usage are batched into one status update: a write for each change of a burst would slow down the pods of the burst.
const (
	// usageDelay is the delay of the first update after a quiet period. During a burst, the next update follows this long after the last
	// change.
	usageDelay = time.Second
	// usageAtMost is the longest time between two updates while changes continue.
	usageAtMost = 10 * time.Second
)

// useOf returns a source that enqueues subnets whose usage has changed, batched as described above.
func useOf(allocator *ipam.Allocator, delay time.Duration) source.Source {
	return source.Func(func(_ context.Context, q k8s.Queue) error {
		g := &usageReports{report: func(subnet string) { q.Add(k8s.Request(subnet)) }, delay: delay, uses: map[string]*use{}}
		allocator.Notify(g.changed)
		return nil
	})
}

// usageReports batches changes of the usage of subnets.
type usageReports struct {
	report func(subnet string)
	delay  time.Duration

	mu   sync.Mutex
	uses map[string]*use
}

type use struct {
	// first is the time of the first unreported change, zero if there is none.
	first time.Time
	// reportedAt is the time of the last report, zero if that was long ago.
	reportedAt time.Time
	// timer fires at this time.
	timer *time.Timer
	at    time.Time
}

// changed records a change of a subnet's usage. It never blocks.
func (g *usageReports) changed(subnet string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	u, now := g.uses[subnet], time.Now()
	if u == nil {
		u = &use{timer: time.AfterFunc(usageAtMost, func() { g.due(subnet) })}
		g.uses[subnet] = u
	}
	if u.first.IsZero() {
		u.first = now
	}
	latest := u.first.Add(g.delay)
	if limit := u.reportedAt.Add(usageAtMost); limit.After(latest) {
		latest = limit
	}
	u.wake(min(g.delay, latest.Sub(now)))
}

func (u *use) wake(after time.Duration) {
	u.at = time.Now().Add(after)
	u.timer.Reset(after)
}

// due reports the changes of a subnet, or forgets a subnet without changes for usageAtMost.
func (g *usageReports) due(subnet string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.uses[subnet]
	switch {
	case u == nil || time.Now().Before(u.at): // the timer was reset after it fired
	case u.first.IsZero():
		delete(g.uses, subnet)
	default:
		u.first, u.reportedAt = time.Time{}, time.Now()
		u.wake(usageAtMost)
		g.report(subnet)
	}
}
