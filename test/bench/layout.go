// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// layoutOne runs everything on one CPU, so that time saved in any process is visible.
	layoutOne = "one"
	// layoutSplit runs etcd, the API server, the databases and ovn-northd on one CPU, the system under test and the driver on
	// another.
	layoutSplit = "split"
)

// layout assigns processes to CPUs, in the format of taskset(1). With the zero layout the kernel decides.
type layout struct {
	Name string `json:"name"`
	// Servers is the CPU of everything that the system under test and the driver connect to.
	Servers string `json:"servers"`
	// System is the CPU of the system under test and the driver.
	System string `json:"system"`
	// Share is the percentage of these CPUs' time that everything has together, 0 for all of it.
	Share int `json:"share,omitempty"`
}

func (l layout) String() string {
	limit := ""
	if l.Share > 0 {
		limit = fmt.Sprintf(", %d %% of the time", l.Share)
	}
	switch l.Name {
	case layoutOne:
		return "everything on CPU " + l.System + limit
	case layoutSplit:
		return fmt.Sprintf("servers and ovn-northd on CPU %s, system under test and driver on CPU %s%s", l.Servers, l.System, limit)
	}
	return "not pinned" + limit
}

// layoutOf chooses from the available CPUs. With layoutSplit the servers get the first and the rest the second; with layoutOne
// everything gets the last.
func layoutOf(name string, cpus []string) (layout, error) {
	if name == "" {
		name = layoutOne
		if len(cpus) > 1 {
			name = layoutSplit
		}
	}
	switch {
	case name == layoutOne && len(cpus) > 0:
		last := cpus[len(cpus)-1]
		return layout{Name: name, Servers: last, System: last}, nil
	case name == layoutSplit && len(cpus) > 1:
		return layout{Name: name, Servers: cpus[0], System: cpus[1]}, nil
	case name == layoutSplit:
		return layout{}, fmt.Errorf("-layout split needs two CPUs, there is %s", strings.Join(cpus, ","))
	}
	return layout{}, fmt.Errorf("-layout %s: %s or %s", name, layoutOne, layoutSplit)
}

// pin moves this process, and the system under test, which inherits the affinity, to the layout's CPU. It executes the program
// again, because the Go runtime counts the CPUs only when it starts.
func (l layout) pin() error {
	on, err := cpus()
	if err != nil || strings.Join(on, ",") == l.System {
		return err
	}
	taskset, err := program("taskset")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	args := append([]string{"taskset", "-c", l.System, self}, os.Args[1:]...)
	args = append(args, "-layout="+l.Name, "-cpus="+l.Servers+","+l.System) // the last value of a flag counts
	return fmt.Errorf("execute taskset: %w", syscall.Exec(taskset, args, os.Environ()))
}

// server returns the command line that runs a program on the servers' CPU.
func (l layout) server(args ...string) []string {
	if l.Servers == l.System {
		return args
	}
	return append([]string{"taskset", "-c", l.Servers}, args...)
}

// program finds a program of util-linux.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find %s, of util-linux: %w", name, err)
	}
	return path, nil
}

// cpus returns the CPUs that this process may run on.
func cpus() ([]string, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the CPU affinity: %w", err)
	}
	var list []string
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			list = append(list, strconv.Itoa(cpu))
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no CPU to run on")
	}
	return list, nil
}
