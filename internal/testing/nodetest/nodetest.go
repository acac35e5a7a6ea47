// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodetest runs the tests of a package in new namespaces that act as a node.
package nodetest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const envInside = "KILN_TEST_INSIDE"

// Inside reports whether the test program runs in these namespaces.
func Inside() bool { return os.Getenv(envInside) != "" }

// Enter runs the test program again in new namespaces, with additional environment variables, and returns its exit code. When
// the tests end in any way, the PID namespace ends all daemons with them.
func Enter(environment ...string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	command := exec.Command(self, os.Args[1:]...)
	command.Env = append(append(os.Environ(), envInside+"=1"), environment...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the signal is sent when this thread ends
	err = command.Run()
	if command.ProcessState == nil {
		return 1, fmt.Errorf("enter namespaces, which needs root: %w", err)
	}
	return command.ProcessState.ExitCode(), nil
}

// Mount mounts a separate /proc and /run/netns for the namespaces.
func Mount() error {
	for _, mount := range []func() error{
		func() error { return syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "") },
		func() error { return syscall.Mount("proc", "/proc", "proc", 0, "") },
		func() error { return os.MkdirAll("/run/netns", 0o755) },
		func() error { return syscall.Mount("netns", "/run/netns", "tmpfs", 0, "") },
	} {
		if err := mount(); err != nil {
			return fmt.Errorf("prepare mounts: %w", err)
		}
	}
	return nil
}

// InNamespace runs a test in a new network namespace.
func InNamespace(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and with it the namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		test(t)
	}()
	<-ended
}

// Again runs the test again in a process with a network namespace of its own, and returns true there. Unlike InNamespace it is for tests that start
// daemons or make further namespaces: no thread of theirs is in another one. Such tests may run in parallel (t.Parallel) if their files and abstract
// sockets have names of their own.
func Again(t *testing.T) bool {
	t.Helper()
	const marker = "KILN_TEST_NAMESPACE"
	if os.Getenv(marker) == t.Name() {
		return true
	}
	// A program, because a process of Go cannot enter a namespace with all its threads.
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), marker+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the signal is sent when this thread ends
	defer runtime.UnlockOSThread()
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("in a network namespace (needs root): %v\n%s", err, output)
	}
	return false
}
