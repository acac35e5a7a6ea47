// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"encoding/json"
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

// The agent's error reaches the plugin only if the agent ends the ADD before the plugin does, also when the plugin has waited for it.
func TestTheAgentsLimitIsBelowTheTimeThatIsLeft(t *testing.T) {
	for name, wait := range map[string]time.Duration{"an agent that listens": 0, "an agent that listens later": time.Second} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			deadline, _ := ctx.Deadline()
			socket := filepath.Join(t.TempDir(), "s")
			var request Request
			var left time.Duration
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				left = time.Until(deadline)
				_ = json.NewDecoder(r.Body).Decode(&request)
				_, _ = w.Write([]byte(`{"result":{"cniVersion":"1.1.0"}}`))
			})}
			t.Cleanup(func() { server.Close() })
			listen := func() {
				listener, err := net.Listen("unix", socket+".new")
				if err != nil {
					t.Error(err)
					return
				}
				go func() { _ = server.Serve(listener) }()
				if err := os.Rename(socket+".new", socket); err != nil {
					t.Error(err)
				}
			}
			if wait == 0 {
				listen()
			} else {
				time.AfterFunc(wait, listen)
			}
			if _, err := NewClient(socket).Add(ctx, Request{}); err != nil {
				t.Fatal(err)
			}
			if limit := time.Duration(request.Limit) * time.Millisecond; limit <= 0 || limit >= left {
				t.Errorf("the agent has %s, and the plugin waits %s for it", limit, left)
			}
		})
	}
}
