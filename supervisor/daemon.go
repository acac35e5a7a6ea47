// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisor starts, watches and stops the daemons of OVN and Open vSwitch. The subpackages ovsdb, northd and ovs
// implement one Kiln process each.
package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// stopGrace is how long a daemon may take to exit by itself. It is less than the Kubernetes default of 30 s for the whole pod.
const stopGrace = 20 * time.Second

// Daemon describes how to run one program in the foreground.
type Daemon struct {
	// Name of the daemon in logs and messages: "ovsdb-server".
	Name string
	// Argv is the program and its arguments.
	Argv []string
	// Env is added to the supervisor's own environment.
	Env []string
	// Control returns the path of the daemon's control socket for its process ID.
	Control func(pid int) string
	// Exit holds the arguments of the control command `exit`, such as "--restart" (ovn-controller(8)).
	Exit []string
	// Said is called with each line of the daemon's output. It must not block. It may be nil.
	Said func(line string)
	// LogLevel is the level of the daemon's own log; nil for info. Its changes are applied while the daemon runs.
	LogLevel *LogLevel
	Log      logr.Logger
}

// Process is a running daemon.
type Process struct {
	daemon Daemon
	cmd    *exec.Cmd
	tail   *tail
	done   chan struct{}
	err    error
}

// Start runs the daemon. Its output goes to the supervisor's standard error.
func (d Daemon) Start() (*Process, error) {
	p := &Process{daemon: d, tail: &tail{to: os.Stderr, said: d.Said}, done: make(chan struct{})}
	level, _ := d.LogLevel.get()
	p.cmd = exec.Command(d.Argv[0], slices.Concat(d.Argv[1:], logArgs(level))...)
	p.cmd.Env = append(os.Environ(), d.Env...)
	p.cmd.Stdout, p.cmd.Stderr = p.tail, p.tail
	// The daemon gets its own process group: the supervisor receives the terminal's signals and stops the daemons in the right
	// order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", d.Name, err)
	}
	d.Log.Info("started", "daemon", d.Name, "pid", p.cmd.Process.Pid)
	go func() {
		p.err = p.ended(p.cmd.Wait())
		close(p.done)
	}()
	go p.followLogLevel(level)
	return p, nil
}

// ended returns an error with the exit status and the last output: the exit status rarely contains the reason.
func (p *Process) ended(err error) error {
	how := "exit status 0"
	if err != nil {
		how = err.Error()
	}
	return fmt.Errorf("%s ended (%s): %s", p.daemon.Name, how, p.tail.last())
}

// Done is closed when the daemon has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns the error that describes how the daemon ended; nil until Done is closed.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Call runs one command on the daemon's control socket.
func (p *Process) Call(ctx context.Context, command string, args ...string) (string, error) {
	return unixctl.Call(ctx, p.daemon.Control(p.cmd.Process.Pid), command, args...)
}

// Stop requests the daemon to exit and waits until it has. It sends SIGTERM if the control socket fails, and SIGKILL after
// stopGrace.
func (p *Process) Stop() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if _, err := p.Call(ctx, "exit", p.daemon.Exit...); err != nil {
		p.daemon.Log.Info("the control socket does not answer: sending SIGTERM", "daemon", p.daemon.Name, "reason", err.Error())
		if err := p.signal(syscall.SIGTERM); err != nil {
			return err
		}
	}
	select {
	case <-p.done:
		p.daemon.Log.Info("stopped", "daemon", p.daemon.Name)
		return nil
	case <-ctx.Done():
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return fmt.Errorf("%s did not end within %s and was killed", p.daemon.Name, stopGrace)
}

func (p *Process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", s, p.daemon.Name, err)
	}
	return nil
}

// tail forwards a daemon's output and keeps its last tailBytes bytes.
type tail struct {
	to   *os.File
	said func(line string)

	mu   sync.Mutex
	end  []byte
	line []byte // an incomplete line
}

// tailBytes fits into a termination message together with the other parts of that message.
const tailBytes = 1024

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	t.end = append(t.end, b...)
	t.end = t.end[max(0, len(t.end)-tailBytes):]
	t.mu.Unlock()
	t.split(b)
	return t.to.Write(b)
}

// split calls said for each complete line. Only Write calls it, and Write is not called concurrently.
func (t *tail) split(b []byte) {
	if t.said == nil {
		return
	}
	t.line = append(t.line, b...)
	for {
		line, rest, complete := bytes.Cut(t.line, []byte("\n"))
		if !complete {
			return
		}
		t.said(string(line))
		t.line = rest
	}
}

func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
