// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"testing"
	"time"

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

func TestOnlyEventsEndsRetriesAfterASecond(t *testing.T) {
	restore := OnlyEvents()
	pauses, total := Workers(1).RateLimiter, time.Duration(0)
	for range 7 {
		total += pauses.When(reconcile.Request{})
	}
	if total > time.Second {
		t.Errorf("the first retries take %s", total)
	}
	if pause := pauses.When(reconcile.Request{}); pause != never {
		t.Errorf("the next retry is after %s", pause)
	}
	if pause := Periodic(time.Minute); pause != never {
		t.Errorf("a periodic pause is %s", pause)
	}
	restore()
	if pause := Periodic(time.Minute); pause != time.Minute {
		t.Errorf("a periodic pause is %s after the end", pause)
	}
	TestPausesBetweenAttemptsEndToGrow(t)
}
