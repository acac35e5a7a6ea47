// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"cmp"
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/source"

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

// onUse returns a source that enqueues subnets whose usage has changed, batched as described above.
func (r *Reconciler) onUse() source.Source {
	delay := cmp.Or(r.UsageDelay, usageDelay)
	r.usage.Delay, r.usage.Quiet, r.usage.Every = delay, delay, usageAtMost
	return source.Func(func(ctx context.Context, q k8s.Queue) error {
		r.Allocator.Notify(r.usage.Changed)
		return r.usage.Start(ctx, q)
	})
}
