// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestWhatFailedForLongIsTriedAgainWithinAResync(t *testing.T) {
	pauses := retries()
	for range 100 {
		if pause := pauses.When(reconcile.Request{}); pause > resync {
			t.Fatalf("the next attempt is after %s", pause)
		}
	}
}
