// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"time"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// Busy says whether the engine has a request of the owner that is not done.
func Busy(e *Engine, o desired.Owner) bool { return e.queue.isBusy(o) }

// SetCanaryInterval is for an engine that has not started.
func SetCanaryInterval(e *Engine, d time.Duration) { e.canaryInterval = d }
