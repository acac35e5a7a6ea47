// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"net"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// absence is how long an ADD waits for an agent that does not listen. An agent that is replaced listens again after a few seconds,
// whereas the kubelet retries a failed sandbox only after ten seconds or more.
const absence = 30 * time.Second

// listens waits until an agent listens on the socket, and reports whether one does. The agent renames its socket to this path when it
// listens (package cniserver); this event ends the wait.
func (c *Client) listens(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, absence)
	defer cancel()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return false
	}
	defer watcher.Close()
	if watcher.Add(filepath.Dir(c.socket)) != nil {
		return false
	}
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket)
		if err == nil {
			_ = conn.Close()
			return true
		}
		if !Unavailable(err) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case err := <-watcher.Errors:
			_ = err // the caller reports that no agent listens
			return false
		case <-watcher.Events:
		}
	}
}
