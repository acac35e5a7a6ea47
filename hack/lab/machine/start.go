// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// InitCommand and SuperviseCommand are the hidden subcommands of the lab's program that run as a machine's own processes.
const (
	InitCommand      = "machine-init"
	SuperviseCommand = "machine-supervise"
)

// readyFD is the descriptor on which init reports "ok" when the machine is up, or an error.
const readyFD = 3

// Start starts a machine and returns its init process once the file system is mounted and the supervisor runs. It runs the lab's
// program at executable, with output to log. The machine outlives the caller.
func Start(executable string, s Spec, log string) (Process, error) {
	for _, dir := range []string{s.Upper(), s.work(), s.root(), filepath.Dir(log)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return Process{}, fmt.Errorf("make a directory for machine %s: %w", s.Name, err)
		}
	}
	if err := s.write(); err != nil {
		return Process{}, err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return Process{}, fmt.Errorf("open the log of machine %s: %w", s.Name, err)
	}
	defer out.Close()
	ready, readyWrite, err := os.Pipe()
	if err != nil {
		return Process{}, fmt.Errorf("make a pipe: %w", err)
	}
	defer ready.Close()

	cmd := exec.Command(executable, InitCommand, filepath.Join(s.Upper(), specFile))
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + Path, "HOME=/root"}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{readyWrite}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
	}
	err = startInNetns(cmd, s.Netns)
	_ = readyWrite.Close()
	if err != nil {
		return Process{}, fmt.Errorf("start machine %s: %w", s.Name, err)
	}
	return awaitInit(cmd, ready, s.Name, log)
}

func awaitInit(cmd *exec.Cmd, ready io.Reader, name, log string) (Process, error) {
	said, err := io.ReadAll(ready)
	if err == nil && string(said) == "ok" {
		p, err := Identify(cmd.Process.Pid)
		if err != nil {
			return Process{}, fmt.Errorf("identify machine %s: %w", name, err)
		}
		return p, cmd.Process.Release()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err == nil {
		err = errors.New(string(said))
	}
	return Process{}, fmt.Errorf("start machine %s: %w (log: %s)", name, err, log)
}

// startInNetns starts cmd in a network namespace. The thread that enters the namespace ends afterwards.
func startInNetns(cmd *exec.Cmd, netns string) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err := setns(netns, unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- cmd.Start()
	}()
	return <-result
}

func setns(path string, kind int) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), kind); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}
