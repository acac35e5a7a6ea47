// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process identifies a process by its ID and start time, so that a reused process ID is not mistaken for it.
type Process struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // clock ticks after boot, proc_pid_stat(5)
}

// Alive reports whether the process runs.
func (p Process) Alive() bool {
	if p.PID == 0 {
		return false
	}
	now, err := Identify(p.PID)
	return err == nil && now == p
}

// Kill sends SIGKILL and waits until the process has ended. It does nothing if the process does not run.
func (p Process) Kill() error {
	if p.PID == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil && !p.Alive() { // the ID may now be a thread's, for which pidfd_open(2) fails
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.Alive() { // checked after the open: from here on the descriptor refers to this process or to none
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return awaitExit(fd, p.PID)
}

// awaitExit waits up to a minute: an init process ends only after everything in its machine.
func awaitExit(fd, pid int) error {
	deadline := time.Now().Add(time.Minute)
	for {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(0, int(left.Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for the end of process %d: %w", pid, err)
		case n == 0:
			return fmt.Errorf("process %d is still there a minute after SIGKILL", pid)
		}
		return nil
	}
}

// Identify reads the start time of a process. It returns an error for a zombie.
func Identify(pid int) (Process, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	started, err := startTime(string(raw))
	if err != nil {
		return Process{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return Process{PID: pid, Started: started}, nil
}

// startTime takes the start time from a line of proc_pid_stat(5). The second field is a name in parentheses, which may hold
// spaces and parentheses; the state is the third, the start time the 22nd.
func startTime(stat string) (uint64, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, errors.New("malformed stat line")
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, errors.New("has ended")
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// InNetns returns the processes whose network namespace is one of the given paths. It skips paths that do not exist.
func InNetns(paths ...string) ([]Process, error) {
	wanted := map[uint64]bool{}
	for _, p := range paths {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err == nil {
			wanted[st.Ino] = true
		}
	}
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Process
	for _, link := range links {
		var st unix.Stat_t
		if unix.Stat(link, &st) != nil || !wanted[st.Ino] {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
		if p, err := Identify(pid); err == nil {
			found = append(found, p)
		}
	}
	return found, nil
}
