// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package daemontest runs daemons for tests. A daemon that ends unexpectedly makes the waits of the test fail at once, with the
// end of the daemon's log.
package daemontest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kiln-net/kiln/internal/panics"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// tailBytes is how much of the end of a log is printed.
const tailBytes = 4096

// Daemon is a process that runs until the test stops it or ends.
type Daemon struct {
	name string
	cmd  *exec.Cmd
	log  string // path of the file
	// skip is the size of the log before this process.
	skip int64
	// asked is set once the test has asked the process to end.
	asked atomic.Bool
	// key is the argument of Hides.
	key []byte
	// signature is the signature part of the token given to HidesToken.
	signature string
	// tolerated is a text in the log that makes the end of the process an expected one.
	tolerated atomic.Pointer[string]
	done      chan struct{}
	err       error // how the process ended, set before done is closed
}

// Start runs a program until the test ends. It appends the output to the log file, which it creates if needed. A test that fails
// prints the end of the log. The test fails if the daemon ends unexpectedly, or if the log reports a panic.
func Start(t testing.TB, name, log string, cmd *exec.Cmd) *Daemon {
	t.Helper()
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{name: name, cmd: cmd, log: log, skip: info.Size(), done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		d.err = cmd.Wait()
		close(d.done)
	}()
	eventually.Watch(t, d.Ended)
	t.Cleanup(func() { d.finish(t) })
	return d
}

// printed has the log files whose ends are in the output of failed tests: a restarted daemon appends to its log, and prints it once.
var printed sync.Map

// finish kills the process at the end of its test.
func (d *Daemon) finish(t testing.TB) {
	t.Helper()
	err := d.Ended()
	d.Kill()
	if d.key != nil && Shows([]byte(d.Log()), d.key) {
		t.Errorf("the log of %s shows its key", d.name)
	}
	if d.signature != "" && strings.Contains(d.Log(), d.signature) {
		t.Errorf("the log of %s shows its token", d.name)
	}
	for _, line := range panics.In(d.Log()) {
		t.Errorf("%s has panicked: %s", d.name, line)
	}
	switch {
	case err != nil:
		t.Error(err)
	case t.Failed() && d.Tail() != "":
		if _, again := printed.LoadOrStore(d.log, true); !again {
			t.Logf("end of the log of %s:\n%s", d.name, d.Tail())
		}
	}
}

// Ended returns nil while the process runs, and after an expected end. Otherwise the error says how it ended and contains the
// end of the log.
func (d *Daemon) Ended() error {
	select {
	case <-d.done:
	default:
		return nil
	}
	if text := d.tolerated.Load(); d.asked.Load() || text != nil && strings.Contains(d.Tail(), *text) {
		return nil
	}
	how := "exit status 0"
	if d.err != nil {
		how = d.err.Error()
	}
	return fmt.Errorf("%s ended although the test did not end it (%s); end of its log:\n%s", d.name, how, d.Tail())
}

// Kill ends the process with SIGKILL and waits for its end. It is idempotent.
func (d *Daemon) Kill() {
	d.asked.Store(true)
	_ = d.cmd.Process.Kill() // fails if it has ended already
	<-d.done
}

// Signal sends a signal. After a signal that ends a process, the end is an expected one.
func (d *Daemon) Signal(signal syscall.Signal) error {
	switch signal {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL:
		d.asked.Store(true)
	}
	return d.cmd.Process.Signal(signal)
}

// Wait waits for the end of the process, which is then an expected one, and returns the error of exec.Cmd.Wait.
func (d *Daemon) Wait() error {
	d.asked.Store(true)
	<-d.done
	return d.err
}

// ExpectEnd makes the end of the process an expected one, for tests in which another program ends it.
func (d *Daemon) ExpectEnd() { d.asked.Store(true) }

// Tolerate makes the end of the process an expected one if the end of its log contains this text.
func (d *Daemon) Tolerate(text string) { d.tolerated.Store(&text) }

// Done is closed when the process has ended.
func (d *Daemon) Done() <-chan struct{} { return d.done }

// PID is the process's ID.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Log returns what this process has written.
func (d *Daemon) Log() string {
	content, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return string(content[min(d.skip, int64(len(content))):])
}

// Tail returns the last lines of the log.
func (d *Daemon) Tail() string {
	log := d.Log()
	if len(log) <= tailBytes {
		return log
	}
	_, lines, _ := strings.Cut(log[len(log)-tailBytes:], "\n")
	return lines
}
