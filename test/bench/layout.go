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
	// layoutOne has everything on one CPU: time saved anywhere shows.
	layoutOne = "one"
	// layoutSplit has etcd, the API server, the databases and ovn-northd on one CPU, the system under test and the driver on another.
	layoutSplit = "split"
)

// layout says on which CPU what runs, as taskset(1) takes it. The zero layout leaves it to the kernel.
type layout struct {
	Name string `json:"name"`
	// Servers is for everything that the system under test and the driver speak to.
	Servers string `json:"servers"`
	// System is for the system under test and the driver.
	System string `json:"system"`
}

func (l layout) String() string {
	switch l.Name {
	case layoutOne:
		return "everything on CPU " + l.System
	case layoutSplit:
		return fmt.Sprintf("servers and ovn-northd on CPU %s, system under test and driver on CPU %s", l.Servers, l.System)
	}
	return "not pinned"
}

// layoutOf chooses CPUs out of those there are: the first for servers, the second for the rest; or the last for everything.
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

// pin makes this process run where the layout has the driver, and with it the system under test, which inherits it. The program is
// executed anew, because a runtime counts its CPUs when it starts.
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
	args = append(args, "-layout="+l.Name, "-cpus="+l.Servers+","+l.System) // the later of two decides
	return fmt.Errorf("execute taskset: %w", syscall.Exec(taskset, args, os.Environ()))
}

// server is the command of a program on the CPU of the servers.
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

// cpus are those that this process may run on.
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
