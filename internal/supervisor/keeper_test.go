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
