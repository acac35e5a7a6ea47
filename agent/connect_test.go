// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// The start of Open vSwitch may take longer than the agent's longest retry delay: its image may have to be pulled.
func TestConnectWaitsForOpenVSwitchHoweverLongItTakes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "db.sock")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := connect(ctx, socket)
			ended <- err
		}()
		time.Sleep(10 * time.Minute) // in the test's fake time
		select {
		case err := <-ended:
			t.Fatalf("it gave up: %v", err)
		default:
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the agent's end is no failure to connect: %v", err)
		}
	})
}
