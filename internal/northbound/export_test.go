// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"time"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// Busy reports whether the engine has an unfinished request of the owner.
func Busy(e *Engine, o desired.Owner) bool { return e.queue.isBusy(o) }

// SetPace sets the pace of slow changes, before Start.
func SetPace(e *Engine, d time.Duration) { e.paced.every = d }

// SetCanaryInterval must be called before the engine starts.
func SetCanaryInterval(e *Engine, d time.Duration) { e.canaryInterval = d }
