// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Runner runs suites.
type Runner struct {
	// Root is the directory of the repository.
	Root string
	// Getenv returns the value of a variable.
	Getenv func(name string) string
	// Do runs a command.
	Do func(context.Context, Command) error
	// Idle returns an error if the machine has other work: a higher load than the argument.
	Idle func(ctx context.Context, load string) error
	// Judge decides about specs that ran several times. Each attempt has a report.
	Judge func(ctx context.Context, run Run, attempts []Attempt) error
	// Load starts processes that use a CPU each, and one that writes and syncs a file. The function that it returns ends them.
	Load func(ctx context.Context, busy int) (end func(), err error)
	// Say reports the progress.
	Say func(format string, args ...any)
}

// Attempt is one of several runs of the same specs.
type Attempt struct {
	// Report is the path of ginkgo's report as JSON.
	Report string
	// Exit is the error of the program, nil if it exited with 0.
	Exit error
}

// Run runs a suite. After a failure the lab stays up, unless the suite says otherwise.
func (r *Runner) Run(ctx context.Context, s Suite) error {
	if len(s.Of) > 0 {
		return r.members(ctx, s)
	}
	in := s.in(r.Root, r.Getenv)
	labs, err := s.labs(in)
	if err != nil {
		return err
	}
	keep := in.Values["KEEP"] != ""
	for i, lab := range labs {
		if !s.Reuses || !keep {
			if err := r.lab(ctx, "down"); err != nil {
				return err
			}
		}
		if i == 0 {
			if err := r.prepare(ctx, s, in, labs); err != nil {
				return err
			}
		}
		failed := r.inLab(ctx, lab, in)
		if failed != nil && len(labs) > 1 {
			failed = fmt.Errorf("lab %s: %w", lab.Name, failed)
		}
		err = errors.Join(err, failed)
		if err != nil && !s.Continues && !s.Ends || ctx.Err() != nil {
			return err
		}
	}
	if keep || err != nil && !s.Ends {
		return err
	}
	return errors.Join(err, r.lab(ctx, "down"))
}

// members runs the suites of which a suite consists. It runs all of them, and returns their errors.
func (r *Runner) members(ctx context.Context, s Suite) error {
	var failed []error
	for _, name := range s.Of {
		member, err := Find(name)
		if err == nil {
			err = r.timed(name, func() error { return r.Run(ctx, member) })
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// prepare builds everything that the labs of a suite need, and then waits until the machine is idle.
func (r *Runner) prepare(ctx context.Context, s Suite, in In, labs []Lab) error {
	var commands []Command
	if s.before != nil {
		commands = s.before(in)
	}
	built := map[string]bool{}
	for _, lab := range labs {
		for _, run := range lab.Runs {
			for _, c := range run.Program.Build {
				if !built[c.String()] {
					built[c.String()] = true
					commands = append(commands, c)
				}
			}
		}
	}
	for _, c := range commands {
		if err := r.Do(ctx, c); err != nil {
			return err
		}
	}
	if s.Idle {
		return r.Idle(ctx, in.Values["LOAD"])
	}
	return nil
}

// inLab brings a lab up and runs its tests. After a failure it prints the state of the lab.
func (r *Runner) inLab(ctx context.Context, lab Lab, in In) error {
	if err := r.Do(ctx, Command{Args: lab.up(in)}); err != nil {
		return err
	}
	for _, archive := range lab.Archives {
		if err := r.lab(ctx, "load", archive); err != nil {
			return err
		}
	}
	var failed []error
	for _, run := range lab.Runs {
		err := r.run(ctx, run, in)
		if run.Name != "" && err != nil {
			err = fmt.Errorf("%s: %w", run.Name, err)
		}
		failed = append(failed, err)
		if ctx.Err() != nil {
			return errors.Join(failed...)
		}
	}
	err := errors.Join(failed...)
	if err != nil {
		_ = r.lab(ctx, "status") // prints its own error
	}
	return err
}

// reports is the directory in _output of the reports of runs that are repeated.
const reports = "runs"

// run runs the tests of a program.
func (r *Runner) run(ctx context.Context, run Run, in In) error {
	c := Command{Env: run.Env, Args: slices.Concat([]string{"lab", "run"}, run.Program.Command, run.Args)}
	switch {
	case run.Times == 0 && run.Name == "":
		return r.Do(ctx, c)
	case run.Times == 0:
		return r.timed(run.Name, func() error { return r.Do(ctx, c) })
	}
	if err := r.Do(ctx, Command{Args: []string{"mkdir", "-p", in.output(reports)}}); err != nil {
		return err
	}
	if run.Busy > 0 {
		end, err := r.Load(ctx, run.Busy)
		if err != nil {
			return fmt.Errorf("load the machine: %w", err)
		}
		defer end()
	}
	var attempts []Attempt
	for i := range run.Times {
		report := filepath.Join(in.output(reports), fmt.Sprintf("%s-%d.json", run.Name, i+1))
		if err := r.Do(ctx, Command{Args: []string{"rm", "-f", report}}); err != nil {
			return err
		}
		again := Command{Env: c.Env, Args: append(slices.Clone(c.Args), "-ginkgo.json-report="+report)}
		var exit error
		_ = r.timed(fmt.Sprintf("%s, run %d of %d", run.Name, i+1, run.Times), func() error {
			exit = r.Do(ctx, again)
			return exit
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		attempts = append(attempts, Attempt{Report: report, Exit: exit})
	}
	return r.Judge(ctx, run, attempts)
}

func (r *Runner) lab(ctx context.Context, args ...string) error {
	return r.Do(ctx, Command{Args: append([]string{"lab"}, args...)})
}

// timed reports the start, the result and the duration of f.
func (r *Runner) timed(name string, f func() error) error {
	start := time.Now()
	r.Say("=== %s", name)
	err := f()
	result := "passed"
	if err != nil {
		result = "failed"
	}
	r.Say("=== %s %s after %s", name, result, time.Since(start).Round(time.Second))
	return err
}

// Describe returns a line for each suite, with its variables.
func Describe() string {
	var b strings.Builder
	for _, s := range All {
		fmt.Fprintf(&b, "%-20s %-7s %s\n", s.Name, s.Often, s.summary())
		for _, v := range s.Variables {
			fmt.Fprintf(&b, "%-28s   %s\n", "", v)
		}
	}
	b.WriteString("variables of every suite in a lab:\n")
	for _, v := range general {
		fmt.Fprintf(&b, "%-28s   %s\n", "", v)
	}
	return b.String()
}

func (s Suite) summary() string {
	switch {
	case len(s.Of) > 0:
		return strings.Join(s.Of, ", ")
	case s.labs == nil:
		return "(its recipe is in the Makefile)"
	}
	return s.Help
}

// String returns the name, the default and the meaning of a variable.
func (v Variable) String() string {
	if v.Default == "" {
		return v.Name + "=…: " + v.Help
	}
	return v.Name + "=" + v.Default + ": " + v.Help
}
