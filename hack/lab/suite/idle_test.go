// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"strings"
	"testing"
	"time"
)

// loads returns a reader of /proc/loadavg that gives one load after another; the last one stays.
func loads(values ...string) func() ([]byte, error) {
	return func() ([]byte, error) {
		value := values[0]
		if len(values) > 1 {
			values = values[1:]
		}
		return []byte(value + " 3.00 2.00 1/345 6789\n"), nil
	}
}

func TestAnIdleMachineIsAwaited(t *testing.T) {
	if err := AwaitIdle(t.Context(), "0.5", time.Millisecond, loads("2.10", "0.51", "0.50", "9.00")); err != nil {
		t.Error(err)
	}
}

func TestABusyMachineIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := AwaitIdle(ctx, "0.5", time.Millisecond, loads("0.51"))
	if err == nil || !strings.Contains(err.Error(), "0.51") || !strings.Contains(err.Error(), "at most 0.5") {
		t.Errorf("error %v, want one with the load and the limit", err)
	}
}

func TestALimitMustBeANumber(t *testing.T) {
	if err := AwaitIdle(t.Context(), "idle", time.Millisecond, loads("0.00")); err == nil || !strings.Contains(err.Error(), `"idle"`) {
		t.Errorf("error %v", err)
	}
}
