// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	restartDelay = time.Second
	dialInterval = 50 * time.Millisecond
)

// Supervise runs a machine's programs until ctx ends, and restarts each a second after it ends. It runs inside the machine and logs
// starts and ends to its standard error.
func Supervise(ctx context.Context, specPath string) error {
	spec, err := readSpec(specPath)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	for _, p := range spec.Programs {
		running.Go(func() { supervise(ctx, p) })
	}
	running.Wait()
	<-ctx.Done()
	return nil
}

func supervise(ctx context.Context, p Program) {
	for _, endpoint := range p.After {
		if !awaitEndpoint(ctx, endpoint) {
			return
		}
	}
	for ctx.Err() == nil {
		err := run(ctx, p)
		if ctx.Err() == nil {
			log.Printf("%s ended (%v): starting it again, log: %s", p.Name, err, logFile(p))
		}
		wait(ctx, restartDelay)
	}
}

func run(ctx context.Context, p Program) error {
	out, err := os.OpenFile(logFile(p), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	log.Printf("%s started as process %d", p.Name, cmd.Process.Pid)
	return cmd.Wait()
}

// AwaitSocket waits up to a minute until a unix socket of the machine accepts connections.
func (p Process) AwaitSocket(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if !awaitEndpoint(ctx, fmt.Sprintf("unix:/proc/%d/root%s", p.PID, path)) {
		return fmt.Errorf("%s takes no connections: %w", path, ctx.Err())
	}
	return nil
}

// awaitEndpoint returns true once the endpoint accepts connections, or false when ctx ends first.
func awaitEndpoint(ctx context.Context, endpoint string) bool {
	network, address, _ := strings.Cut(endpoint, ":")
	dialer := net.Dialer{Timeout: time.Second}
	for ctx.Err() == nil {
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			_ = conn.Close()
			return true
		}
		wait(ctx, dialInterval)
	}
	return false
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func logFile(p Program) string { return filepath.Join("/var/log", p.Name+".log") }
