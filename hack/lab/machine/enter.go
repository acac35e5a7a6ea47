// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Command is a command to run inside a machine.
type Command struct {
	Args   []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// Run runs a command in the machine whose init process p is, and waits for its end. An exit status other than 0 is an
// *exec.ExitError.
func (p Process) Run(ctx context.Context, c Command) error {
	if len(c.Args) == 0 {
		return errors.New("no command given")
	}
	if !p.Alive() {
		return errors.New("the machine does not run")
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is in the machine and ends with this goroutine
		if err := p.enter(); err != nil {
			result <- err
			return
		}
		result <- c.run(ctx)
	}()
	return <-result
}

// enter moves the calling thread into the machine. Children of the thread get the machine's process IDs.
func (p Process) enter() error {
	// A thread that shares its root directory with other threads cannot change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the root directory: %w", err)
	}
	namespaces := []struct {
		name string
		kind int
	}{
		{"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS}, {"ipc", unix.CLONE_NEWIPC},
		{"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}, // mnt is last, because it replaces /proc
	}
	for _, ns := range namespaces {
		if err := setns(fmt.Sprintf("/proc/%d/ns/%s", p.PID, ns.name), ns.kind); err != nil {
			return err
		}
	}
	return nil
}

// run runs on a thread in the machine, so lookPath searches the machine's file system.
func (c Command) run(ctx context.Context) error {
	program, err := lookPath(c.Args[0])
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, c.Args[1:]...)
	cmd.Args[0] = c.Args[0]
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + Path, "HOME=/root", "TERM=" + os.Getenv("TERM"), "LANG=C.UTF-8"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	return cmd.Run()
}
