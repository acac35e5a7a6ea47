// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Changes of a subnet's use are gathered into one status update: a write per second of a burst would be felt by its pods.
const (
	// usageDelay is from a change to its update, when there was none lately, and else from the last change.
	usageDelay = time.Second
	// usageAtMost is how long an update waits after the one before it while changes go on.
	usageAtMost = 10 * time.Second
)

// useOf enqueues subnets whose use has changed, this long after the change.
func useOf(allocator *ipam.Allocator, delay time.Duration) source.Source {
	return source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		g := &gathering{told: func(subnet string) { q.Add(k8s.Request(subnet)) }, delay: delay, uses: map[string]*use{}}
		allocator.Notify(g.changed)
		return nil
	})
}

// gathering are the subnets whose use has changed lately.
type gathering struct {
	told  func(subnet string)
	delay time.Duration

	mu   sync.Mutex
	uses map[string]*use
}

type use struct {
	// first change since it was told, zero when there is none.
	first time.Time
	// told is when a change was told last, zero when that is long ago.
	told time.Time
	// timer calls at this time.
	timer *time.Timer
	at    time.Time
}

// changed never blocks.
func (g *gathering) changed(subnet string) {
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
	if limit := u.told.Add(usageAtMost); limit.After(latest) {
		latest = limit
	}
	u.wake(min(g.delay, latest.Sub(now)))
}

func (u *use) wake(after time.Duration) {
	u.at = time.Now().Add(after)
	u.timer.Reset(after)
}

// due tells of changes, or forgets a subnet that had none for some time.
func (g *gathering) due(subnet string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.uses[subnet]
	switch {
	case u == nil || time.Now().Before(u.at): // the timer was set anew while it called
	case u.first.IsZero():
		delete(g.uses, subnet)
	default:
		u.first, u.told = time.Time{}, time.Now()
		u.wake(usageAtMost)
		g.told(subnet)
	}
}
