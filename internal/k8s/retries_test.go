// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestPausesBetweenAttemptsEndToGrow(t *testing.T) {
	pauses := Workers(1).RateLimiter
	for range 100 {
		if pause := pauses.When(reconcile.Request{}); pause > lastRetry {
			t.Fatalf("a failed object waits for %s", pause)
		}
	}
}
