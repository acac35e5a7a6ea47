// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/hack/lab/machine"
)

// stateDir is the directory with all files that a lab writes.
type stateDir string

// state is the part of a lab that up stores for later commands.
type state struct {
	ControlPlanes  int                        `json:"controlPlanes"`
	KubeProxy      bool                       `json:"kubeProxy,omitempty"`
	Workers        int                        `json:"workers"`
	KernelDatapath bool                       `json:"kernelDatapath,omitempty"`
	IPv6First      bool                       `json:"ipv6First,omitempty"`
	SingleNIC      bool                       `json:"singleNIC,omitempty"`
	Machines       map[string]machine.Process `json:"machines"`
	// Tunables are the kernel-wide settings that kubelets change, with their original values.
	Tunables map[string]string `json:"tunables"`
}

func (d stateDir) file() string { return filepath.Join(string(d), "lab.json") }

// load returns the stored state; there is false when no lab is up.
func (d stateDir) load() (s state, there bool, err error) {
	raw, err := os.ReadFile(d.file())
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil
	}
	if err != nil {
		return s, false, fmt.Errorf("read the lab's state: %w", err)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, false, fmt.Errorf("decode the lab's state %s: %w", d.file(), err)
	}
	return s, true, nil
}

func (d stateDir) save(s state) error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the lab's state: %w", err)
	}
	if err := machine.WriteFile(d.file()+".tmp", raw, 0o644); err != nil {
		return err
	}
	if err := os.Rename(d.file()+".tmp", d.file()); err != nil {
		return fmt.Errorf("write the lab's state: %w", err)
	}
	return nil
}

// lock takes an exclusive lock against other commands that change the lab, until the returned function is called. It does not wait:
// it fails when another command holds the lock.
func (d stateDir) lock() (unlock func(), err error) {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(string(d), ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lab's lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another command is changing the lab in %s: %w", d, err)
	}
	return func() { _ = f.Close() }, nil
}

// tunables are the kernel-wide settings that a kubelet changes when it starts.
var tunables = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
	"kernel/keys/root_maxbytes",
}

// readTunables skips settings that this kernel does not have.
func readTunables() map[string]string {
	values := map[string]string{}
	for _, key := range tunables {
		if raw, err := os.ReadFile(filepath.Join("/proc/sys", key)); err == nil {
			values[key] = string(raw)
		}
	}
	return values
}

func restoreTunables(values map[string]string) error {
	var problems []error
	for key, value := range values {
		if err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0); err != nil {
			problems = append(problems, fmt.Errorf("restore %s: %w", key, err))
		}
	}
	return errors.Join(problems...)
}
