// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package suite is the table of the test suites: the make target of each, the labs that it brings up, the tests that it runs there, and how often
// workflows run it.
package suite

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Often says who runs a suite without a request.
type Often string

// The gate runs with each change, others each night or each week by workflows, and the rest only by hand. A release needs evidence of all but the
// last.
const (
	Change Often = "change"
	Night  Often = "night"
	Week   Often = "week"
	Hand   Often = "hand"
)

// Suite is a make target that runs tests.
type Suite struct {
	// Name is the make target.
	Name string
	// Help is the line of `make` about it.
	Help  string
	Often Often
	// Limit is the longest time that its job in a workflow may take.
	Limit time.Duration
	// Variables are the environment variables that change the tests or their number. Suites in labs have the general variables as well.
	Variables []Variable

	// Needs are the make targets that are made first.
	Needs []string
	// Idle makes the suite refuse a machine that has other work.
	Idle bool
	// Reuses makes KEEP=1 use the lab that is up.
	Reuses bool
	// Continues makes the suite run all its labs after a failure.
	Continues bool
	// Ends makes the suite take the lab down after a failure, too: its report has everything.
	Ends bool
	// labs returns the labs, which are brought up one after another. It is nil if the suite has other suites or a recipe in the Makefile.
	labs func(In) ([]Lab, error)
	// before returns commands that run before the first lab.
	before func(In) []Command
	// Of has the names of the suites that this one consists of.
	Of []string
}

// InLab reports whether `lab suite` runs the suite. The recipes of other suites are in the Makefile.
func (s Suite) InLab() bool { return s.labs != nil || len(s.Of) > 0 }

// Variable is an environment variable that users may set.
type Variable struct{ Name, Default, Help string }

// general are the variables of every suite in a lab.
var general = []Variable{
	{"KEEP", "", "1 leaves the last lab up"},
	{"DATAPATH", "userspace", "kernel runs nodes with the kernel's Open vSwitch datapath"},
	{"KERNEL", "uml", "the kernel of DATAPATH=kernel: uml or host"},
	{"CONTROL_PLANES", "1", "number of control-plane nodes"},
	{"WORKERS", "2", "number of workers"},
}

// General returns the names of the variables of every suite in a lab.
func General() []string {
	names := make([]string, len(general))
	for i, v := range general {
		names[i] = v.Name
	}
	return names
}

// AllVariables returns the variables of the suite.
func (s Suite) AllVariables() []Variable {
	switch {
	case s.labs != nil:
		return slices.Concat(general, s.Variables)
	case len(s.Of) > 0:
		all := slices.Clone(general)
		for _, name := range s.Of {
			member, _ := Find(name)
			all = append(all, member.Variables...)
		}
		return all
	}
	return s.Variables
}

// Settings returns the variables that have another value than their default, as NAME=value.
func (s Suite) Settings(getenv func(string) string) []string {
	var settings []string
	for _, v := range s.AllVariables() {
		if value := getenv(v.Name); value != "" && value != v.Default {
			settings = append(settings, v.Name+"="+value)
		}
	}
	return settings
}

// In holds the inputs of a suite's labs.
type In struct {
	// Root is the directory of the repository.
	Root string
	// Values has the values of the suite's variables.
	Values map[string]string
}

func (s Suite) in(root string, getenv func(string) string) In {
	in := In{Root: root, Values: map[string]string{}}
	for _, v := range s.AllVariables() {
		in.Values[v.Name] = cmp.Or(getenv(v.Name), v.Default)
	}
	return in
}

// output returns the path of a file that tests write. In a lab with a kernel of its own, this directory is the only one of the host that can be
// written.
func (in In) output(name string) string { return filepath.Join(in.Root, "_output", name) }

// Lab is a new lab, and the tests that run in it.
type Lab struct {
	// Name distinguishes the labs of a suite.
	Name string
	// ControlPlanes is the number of control-plane nodes, if CONTROL_PLANES does not matter.
	ControlPlanes string
	// KernelDatapath brings the lab up with the kernel's datapath, also without DATAPATH=kernel.
	KernelDatapath bool
	// Up are more flags of `lab up`.
	Up []string
	// Archives are the images to load.
	Archives []string
	// Runs are the tests, one program after another.
	Runs []Run
}

// up returns the arguments of the command that brings the lab up.
func (l Lab) up(in In) []string {
	args := []string{"lab", "up", "--control-planes", cmp.Or(l.ControlPlanes, in.Values["CONTROL_PLANES"]), "--workers", in.Values["WORKERS"]}
	if l.KernelDatapath || in.Values["DATAPATH"] == "kernel" {
		args = append(args, "--kernel", in.Values["KERNEL"])
	}
	return append(args, l.Up...)
}

// Run is a program with tests that runs where the lab is.
type Run struct {
	// Name distinguishes the runs of a lab.
	Name    string
	Program Program
	Env     []string
	Args    []string
	// Times is the number of runs that decide about each spec; 0 is one run whose exit status decides.
	Times int
	// Need is the number of these runs in which a spec must pass; 0 is the majority.
	Need int
	// Busy is the number of processes that use a CPU each meanwhile. One more process writes and syncs a file.
	Busy int
}

// Passes returns the number of runs in which a spec must pass.
func (r Run) Passes() int { return cmp.Or(r.Need, r.Times/2+1) }

// Program is a program with tests.
type Program struct {
	// Build are the commands that build it on the host.
	Build []Command
	// Command are the arguments of `lab run`.
	Command []string
}

// Command is a command of a suite. The program "lab" is hack/lab itself.
type Command struct {
	// Dir is the working directory, relative to the repository.
	Dir  string
	Env  []string
	Args []string
}

// String returns the command as a line of a shell.
func (c Command) String() string {
	var words []string
	for _, e := range c.Env {
		name, value, _ := strings.Cut(e, "=")
		words = append(words, name+"="+quote(value))
	}
	for _, a := range c.Args {
		words = append(words, quote(a))
	}
	line := strings.Join(words, " ")
	if c.Dir != "" {
		line = "cd " + quote(c.Dir) + " && " + line
	}
	return line
}

func quote(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n'\"\\$&|;<>()*?[]#~!`{}") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Find returns the suite of a make target.
func Find(name string) (Suite, error) {
	for _, s := range All {
		if s.Name == name {
			return s, nil
		}
	}
	return Suite{}, fmt.Errorf("no suite %q: `go run ./hack/lab suite` lists them", name)
}

// Members returns the names of the suites that a target consists of: Of, or itself.
func (s Suite) Members() []string {
	if len(s.Of) > 0 {
		return s.Of
	}
	return []string{s.Name}
}

// ThatRun returns the suites that run so often, in the order of the table. A suite that consists of others is left out: its members are in the table.
func ThatRun(often ...Often) []Suite {
	var suites []Suite
	for _, s := range All {
		if len(s.Of) == 0 && slices.Contains(often, s.Often) {
			suites = append(suites, s)
		}
	}
	return suites
}
