// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/kiln-net/kiln/internal/supervisor"
)

// awaitSocket returns once something listens on a socket, or ctx ends. Daemons that find their peer's socket missing wait for a second before
// they look again, in which no packet passes: so they are started one after the other.
func awaitSocket(ctx context.Context, path string, report func(error)) {
	supervisor.Retry(ctx, report, func() error {
		if err := awaitFile(ctx, path); err != nil || ctx.Err() != nil {
			return err
		}
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return fmt.Errorf("reach %s: %w", path, err)
		}
		return conn.Close()
	})
}

// awaitFile returns once there is such a file, or ctx ends.
func awaitFile(ctx context.Context, path string) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for %s: %w", path, err)
	}
	defer watcher.Close()
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watch for %s: %w", path, err)
	}
	for {
		if there, err := exists(path); there || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-watcher.Events:
			if !open {
				return errors.New("the watch for " + path + " ended")
			}
		case err := <-watcher.Errors:
			return fmt.Errorf("watch for %s: %w", path, err)
		}
	}
}
