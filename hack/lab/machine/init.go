// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Init is the first process of a machine: it mounts the file systems, starts the supervisor and then reaps orphaned processes. It
// returns when the supervisor has ended, which ends the machine.
func Init(specPath string) error {
	ready := os.NewFile(readyFD, "ready")
	supervisor, err := boot(specPath)
	if err != nil {
		fmt.Fprint(ready, err)
		return err
	}
	fmt.Fprint(ready, "ok")
	_ = ready.Close()
	return Reap(supervisor)
}

// Reap waits for the orphaned processes of which this process, an init, became the parent. It returns when the child main has ended.
func Reap(main int) error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for processes: %w", err)
		case pid == main:
			return fmt.Errorf("the main process ended with status %#x", uint32(status))
		}
	}
}

// boot mounts the root file system and starts the supervisor. It returns the supervisor's process ID.
func boot(specPath string) (int, error) {
	unix.CloseOnExec(readyFD)
	spec, err := readSpec(specPath)
	if err != nil {
		return 0, err
	}
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return 0, fmt.Errorf("set the host name: %w", err)
	}
	if err := mountRoot(spec); err != nil {
		return 0, err
	}
	pid, err := unixForkExec("/proc/self/exe", SuperviseCommand, specFile)
	if err != nil {
		return 0, fmt.Errorf("start the supervisor: %w", err)
	}
	return pid, nil
}
