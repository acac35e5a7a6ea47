// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"testing"
	"time"
)

// No event reports changes before the first netlink subscription, or between two subscriptions.
func TestWhatWasMissedIsLookedForOnceTheKernelIsListenedTo(t *testing.T) {
	ctx, looked := context.WithTimeout(t.Context(), time.Minute)
	defer looked()
	if err := (&Reconciler{}).listenOnce(ctx, looked); err != nil {
		t.Fatal(err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error("it listens, and does not look")
	}
}
