// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// firstDelay and lastDelay bound the back-off before a daemon that ended early is restarted; it doubles each time.
	firstDelay = 500 * time.Millisecond
	lastDelay  = 10 * time.Second
	// retryDelay is the first back-off of Retry.
	retryDelay = 100 * time.Millisecond
	// healthyAfter is the run time after which the end of a daemon counts as its first failure.
	healthyAfter = 30 * time.Second
	// failureLimit is the number of consecutive failures after which Run returns, so that the kubelet restarts the container.
	failureLimit = 6
)

// ErrNotRunning is returned for calls to a daemon that is not running at the moment.
var ErrNotRunning = errors.New("not running")

// Keeper keeps one daemon running. It restarts only the daemon that ended: the other daemons, and with a userspace datapath the
// network itself, continue without it.
type Keeper struct {
	Daemon Daemon
	// After is a gate: the daemon does not start until the channel is closed. A nil channel is an open gate.
	After <-chan struct{}
	// BeforeStart is called before each start of the daemon, after the gate. It returns an error if the daemon must not start any more,
	// because everything is about to stop.
	BeforeStart func(context.Context) error
	// BeforeStop is called before the daemon is stopped, while it still serves.
	BeforeStop func(context.Context)
	// Unlimited restarts the daemon after any number of failures. Without it, Run returns after failureLimit of them, which ends the
	// container and so all other daemons of the supervisor.
	Unlimited bool

	mu      sync.Mutex
	process *Process
}

// Run starts the daemon and restarts it whenever it ends. After ctx ends it stops the daemon and returns. It returns an error
// when the daemon keeps failing.
func (k *Keeper) Run(ctx context.Context) error {
	if k.After != nil {
		select {
		case <-k.After:
		case <-ctx.Done():
			return nil
		}
	}
	var failures backOff
	for ctx.Err() == nil {
		if k.BeforeStart != nil {
			if err := k.BeforeStart(ctx); err != nil {
				<-ctx.Done()
				return nil
			}
		}
		begun := time.Now()
		err := k.once(ctx)
		if ctx.Err() != nil {
			return err
		}
		delay := failures.next(time.Since(begun))
		if failures.count >= failureLimit && !k.Unlimited {
			return fmt.Errorf("gave up after %d attempts: %w", failures.count, err)
		}
		k.Daemon.Log.Error(err, "starting it again", "daemon", k.Daemon.Name, "after", delay.String())
		Pause(ctx, delay)
	}
	return nil
}

// backOff counts consecutive failures of a daemon.
type backOff struct {
	count int
	delay time.Duration
}

// next records that the daemon ended after it had run for a time, and returns the pause before its next start: none after a run of
// healthyAfter, otherwise firstDelay, doubled with each failure up to lastDelay.
func (b *backOff) next(ran time.Duration) time.Duration {
	if ran > healthyAfter {
		*b = backOff{count: 1}
		return 0
	}
	b.count++
	b.delay = min(max(2*b.delay, firstDelay), lastDelay)
	return b.delay
}

// once runs the daemon until it ends or ctx does.
func (k *Keeper) once(ctx context.Context) error {
	process, err := k.Daemon.Start()
	if err != nil {
		return err
	}
	k.set(process)
	defer k.set(nil)
	select {
	case <-process.Done():
		return process.Err()
	case <-ctx.Done():
		if k.BeforeStop != nil {
			grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
			k.BeforeStop(grace)
			cancel()
		}
		return process.Stop()
	}
}

func (k *Keeper) set(p *Process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.process = p
}

// Call runs one command on the control socket of the current process.
func (k *Keeper) Call(ctx context.Context, command string, args ...string) (string, error) {
	k.mu.Lock()
	process := k.process
	k.mu.Unlock()
	if process == nil {
		return "", fmt.Errorf("%s of %s: %w", command, k.Daemon.Name, ErrNotRunning)
	}
	return process.Call(ctx, command, args...)
}

// Pause waits for d or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Retry calls f until it succeeds or ctx ends. It reports each failure and backs off between attempts.
func Retry(ctx context.Context, report func(error), f func() error) {
	for delay := retryDelay; ctx.Err() == nil; delay = min(2*delay, lastDelay) {
		err := f()
		if err == nil {
			return
		}
		report(err)
		Pause(ctx, delay)
	}
}

// RunInOrder runs daemons, each once its gate is open, until ctx ends or one keeps failing. Then it stops them one by one, in
// reverse order.
func RunInOrder(ctx context.Context, keepers ...*Keeper) error {
	gaveUp := make(chan struct{}, len(keepers))
	stops := make([]func() error, 0, len(keepers))
	for _, k := range keepers {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		done := make(chan error, 1)
		go func() {
			err := k.Run(own)
			if err != nil {
				gaveUp <- struct{}{}
			}
			done <- err
		}()
		stops = append(stops, func() error { cancel(); return <-done })
	}
	select {
	case <-ctx.Done():
	case <-gaveUp:
	}
	var errs []error
	for _, stop := range slices.Backward(stops) {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}
