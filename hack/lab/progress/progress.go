// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package progress reports the progress of a long command on a terminal: one line when a step starts, one with its duration when it
// ends, and a heartbeat in between.
package progress

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const heartbeat = 15 * time.Second

// Reporter writes progress lines. Steps may run concurrently.
type Reporter struct {
	mu    sync.Mutex
	out   io.Writer
	every time.Duration
}

// New returns a Reporter that writes to out.
func New(out io.Writer) *Reporter { return &Reporter{out: out, every: heartbeat} }

// Step runs f. It reports the start, the end with the duration, and every 15 seconds that f still runs. It returns f's error,
// wrapped with the step's name.
func (r *Reporter) Step(name string, f func() error) error {
	start := time.Now()
	r.Say("  ..  %s", name)
	done := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() { r.beat(name, start, done) })
	err := f()
	close(done)
	beating.Wait()
	took := time.Since(start).Round(100 * time.Millisecond)
	if err != nil {
		r.Say("FAIL  %s (%s)", name, took)
		return fmt.Errorf("%s: %w", name, err)
	}
	r.Say("  ok  %s (%s)", name, took)
	return nil
}

// Say writes one line.
func (r *Reporter) Say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, format+"\n", args...)
}

func (r *Reporter) beat(name string, start time.Time, done <-chan struct{}) {
	ticker := time.NewTicker(r.every)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			r.Say("  ..  %s: still at it after %s", name, time.Since(start).Round(time.Second))
		}
	}
}
