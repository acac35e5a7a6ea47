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

	"github.com/kiln-net/kiln/supervisor"
)

// awaitSocket returns once a process listens on the socket, or ctx ends. The daemons start one after the other: a daemon whose
// peer's socket is missing retries after a second, and no packet is forwarded in that second.
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

// awaitFile returns once the file exists, or ctx ends.
func awaitFile(ctx context.Context, path string) error {
	return awaitChange(ctx, filepath.Dir(path), func() (bool, error) { return exists(path) })
}

// awaitChange calls done now and at each change of the directory. It returns once done returns true or an error, or ctx ends.
func awaitChange(ctx context.Context, directory string, done func() (bool, error)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", directory, err)
	}
	defer watcher.Close()
	if err := watcher.Add(directory); err != nil {
		return fmt.Errorf("watch %s: %w", directory, err)
	}
	for {
		if is, err := done(); is || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-watcher.Events:
			if !open {
				return errors.New("the watch of " + directory + " ended")
			}
		case err := <-watcher.Errors:
			return fmt.Errorf("watch %s: %w", directory, err)
		}
	}
}
