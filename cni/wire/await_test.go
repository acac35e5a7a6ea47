// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAnAddWaitsForTheAgent(t *testing.T) {
	for name, left := range map[string]bool{"no socket": false, "the socket of an agent that was killed": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			socket := filepath.Join(dir, "s")
			if left {
				listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
				if err != nil {
					t.Fatal(err)
				}
				listener.SetUnlinkOnClose(false)
				listener.Close()
			}
			answered := make(chan error)
			go func() {
				_, err := NewClient(socket).Add(t.Context(), Request{})
				answered <- err
			}()
			select {
			case err := <-answered:
				t.Fatalf("without an agent: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			listener, err := net.Listen("unix", socket+".new")
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"result":{"cniVersion":"1.1.0"}}`))
			})}
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(func() { server.Close() })
			if err := os.Rename(socket+".new", socket); err != nil {
				t.Fatal(err)
			}
			if err := <-answered; err != nil {
				t.Errorf("the agent is back: %v", err)
			}
		})
	}
}

func TestAnAddWaitsNoLongerThanItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := NewClient(filepath.Join(t.TempDir(), "s")).Add(ctx, Request{}); !Unavailable(err) {
		t.Errorf("got %v", err)
	}
}
