// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
)

// shell is a daemon without a control socket, so that it is stopped by a signal.
func shell(t *testing.T, name, script string) Daemon {
	t.Helper()
	return Daemon{
		Name: name, Argv: []string{"/bin/sh", "-c", script}, Log: testr.New(t),
		Control: func(int) string { return filepath.Join(t.TempDir(), "none.ctl") },
	}
}

func TestProcessSaysHowItEnded(t *testing.T) {
	process, err := shell(t, "loser", "echo the disk is full >&2; exit 3").Start()
	if err != nil {
		t.Fatal(err)
	}
	<-process.Done()
	if err := process.Err(); err == nil || !strings.Contains(err.Error(), "loser ended (exit status 3): the disk is full") {
		t.Errorf("got %v", err)
	}
	if err := process.Stop(); err != nil {
		t.Errorf("stopping an ended process: %v", err)
	}
}

func TestStopWithoutControlSocketSendsSIGTERM(t *testing.T) {
	process, err := shell(t, "deaf", "exec sleep 1000").Start()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Stop(); err != nil {
		t.Error(err)
	}
}

func TestKeeperStartsAgain(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "second")
	k := &Keeper{Daemon: shell(t, "flaky", fmt.Sprintf("test -e %[1]s.started && touch %[1]s && exec sleep 1000; touch %[1]s.started", marker))}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	for {
		if _, err := os.Stat(marker); err == nil {
			break
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := k.Call(t.Context(), "version"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("calling a stopped process: %v", err)
	}
}

func TestBackOffDoublesUntilADaemonIsHealthy(t *testing.T) {
	var b backOff
	for i, step := range []struct {
		ran, want time.Duration
		count     int
	}{
		{ran: 0, want: 500 * time.Millisecond, count: 1},
		{ran: time.Second, want: time.Second, count: 2},
		{ran: 0, want: 2 * time.Second, count: 3},
		{ran: 0, want: 4 * time.Second, count: 4},
		{ran: 0, want: 8 * time.Second, count: 5},
		{ran: 0, want: 10 * time.Second, count: 6},
		{ran: 0, want: 10 * time.Second, count: 7},
		{ran: time.Minute, want: 0, count: 1}, // a daemon that ran well starts again at once
		{ran: 0, want: 500 * time.Millisecond, count: 2},
	} {
		if got := b.next(step.ran); got != step.want || b.count != step.count {
			t.Errorf("step %d: pause %v after %d failures, want %v after %d", i, got, b.count, step.want, step.count)
		}
	}
}

// An ovn-controller that keeps failing must not end the container: ovs-vswitchd forwards packets without it.
func TestOnlyALimitedKeeperGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := Daemon{Name: "missing", Argv: []string{filepath.Join(t.TempDir(), "none")}, Log: testr.New(t)}
		if err := (&Keeper{Daemon: missing}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "gave up after 6 attempts") {
			t.Errorf("a limited keeper: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := (&Keeper{Daemon: missing, Unlimited: true}).Run(ctx); err != nil || ctx.Err() == nil {
			t.Errorf("an unlimited keeper returned %v before its context ended", err)
		}
	})
}

func TestRunInOrderStopsFromTheLastToTheFirst(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	daemon := func(name string) *Keeper {
		return &Keeper{Daemon: shell(t, name, fmt.Sprintf("trap 'echo %[1]s >> %[2]s; exit' TERM; touch %[2]s.%[1]s; while :; do sleep 0.01; done", name, log))}
	}
	closed := make(chan struct{})
	never := daemon("never")
	never.After = closed
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- RunInOrder(ctx, daemon("first"), daemon("second"), never) }()
	for _, name := range []string{"first", "second"} {
		for {
			if _, err := os.Stat(log + "." + name); err == nil {
				break
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if order, err := os.ReadFile(log); err != nil || string(order) != "second\nfirst\n" {
		t.Errorf("stopped in the order %q, %v", order, err)
	}
}
