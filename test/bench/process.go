// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// clockTick is USER_HZ, the unit of times in /proc/PID/stat, which is 100 Hz on every Linux architecture that Go supports.
const clockTick = 10 * time.Millisecond

// process is a program that the bench runs and measures.
type process struct {
	cmd *exec.Cmd
	log string
	// stopping is set before the bench ends the process.
	stopping atomic.Bool
	ended    chan struct{}
}

// start runs a program with its output, except where cmd already directs it, in dir/name.log. The program ends with the bench, and an interrupt from the terminal does
// not reach it. start calls lost if the program ends on its own.
func start(dir, name string, cmd *exec.Cmd, lost func(error)) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer log.Close()
	cmd.Stdout = log
	if cmd.Stderr == nil {
		cmd.Stderr = log
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{cmd: cmd, log: log.Name(), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		err := cmd.Wait()
		if err == nil {
			err = errors.New("exit status 0")
		}
		if !p.stopping.Load() {
			lost(fmt.Errorf("%s ended on its own: %w\n%s", name, err, p.tail()))
		}
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the process with SIGKILL, as in a crash, and waits until it has ended.
func (p *process) kill() {
	p.stopping.Store(true)
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.ended
}

// tail returns the end of the process's output.
func (p *process) tail() string {
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-2000):])
}

// cpuTime returns the CPU time of a process so far, in user mode and in the kernel (proc_pid_stat(5)).
func cpuTime(pid int) (time.Duration, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime; fields starts with the state
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// statFields returns the fields of /proc/PID/stat that follow the program's name.
func statFields(pid int) ([]string, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, fmt.Errorf("read what process %d used: %w", pid, err)
	}
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("process %d has a stat of %d fields", pid, len(fields))
	}
	return fields, nil
}

// traffic returns the bytes that a process has read and written so far, including on sockets (proc_pid_io(5)).
func traffic(pid int) (read, written int64, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read the traffic of process %d: %w", pid, err)
	}
	if _, err := fmt.Sscanf(string(content), "rchar: %d\nwchar: %d", &read, &written); err != nil {
		return 0, 0, fmt.Errorf("read the traffic of process %d: %w", pid, err)
	}
	return read, written, nil
}

// residentBytes returns the resident memory of a process.
func residentBytes(pid int) (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	fields := strings.Fields(string(content))
	if len(fields) < 2 {
		return 0, fmt.Errorf("process %d has no statm", pid)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return pages * int64(os.Getpagesize()), nil
}

// childNamed finds a child of this process that a library started.
func childNamed(name string) (int, error) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(entry, "comm"))
		if err != nil || strings.TrimSpace(string(comm)) != name {
			continue
		}
		fields, err := statFields(pid)
		if err == nil && fields[1] == strconv.Itoa(os.Getpid()) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process %s of ours", name)
}
