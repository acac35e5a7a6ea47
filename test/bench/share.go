// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// period is the period of a CPU quota in microseconds, as the kubelet sets it.
const period = 100_000

// enterShare limits this process, and all that it starts, to the layout's share of its CPUs: it enters a new control group with a quota
// (cgroups(7)). The returned function leaves the group and removes it.
func (l layout) enterShare() (leave func() error, err error) {
	if l.Share == 0 {
		return func() error { return nil }, nil
	}
	parent, files := "/sys/fs/cgroup/cpu", func(quota int) map[string]string {
		return map[string]string{"cpu.cfs_period_us": strconv.Itoa(period), "cpu.cfs_quota_us": strconv.Itoa(quota)}
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		parent, files = "/sys/fs/cgroup", func(quota int) map[string]string {
			return map[string]string{"cpu.max": fmt.Sprintf("%d %d", quota, period)}
		}
	}
	cpus := 1
	if l.Servers != l.System {
		cpus = 2
	}
	group := filepath.Join(parent, fmt.Sprintf("kiln-bench-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		return nil, fmt.Errorf("make a control group for -share, which needs root: %w", err)
	}
	leave = func() error {
		return errors.Join(enter(parent), os.Remove(group))
	}
	for name, value := range files(cpus * period * l.Share / 100) {
		if err := os.WriteFile(filepath.Join(group, name), []byte(value), 0o644); err != nil {
			return nil, errors.Join(fmt.Errorf("set the quota of a control group: %w", err), leave())
		}
	}
	return leave, enter(group)
}

// enter moves this process to a control group.
func enter(group string) error {
	err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644)
	if err != nil {
		return fmt.Errorf("enter a control group: %w", err)
	}
	return nil
}
