// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/suite"
)

// timings is the file to which test-timing adds its values.
const timings = "timing.csv"

func (l *lab) suite() *cobra.Command {
	dryRun := false
	cmd := &cobra.Command{
		Use:   "suite [NAME]",
		Short: "Run a test suite in labs of its own, with the variables of the environment; without a name, list the suites and their variables",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				_, err := fmt.Fprint(cmd.OutOrStdout(), suite.Describe())
				return err
			}
			s, err := suite.Find(args[0])
			if err != nil {
				return err
			}
			if !s.InLab() {
				return fmt.Errorf("the recipe of %s is in the Makefile: run `make %s`", s.Name, s.Name)
			}
			root, err := prepare.Source()
			if err != nil {
				return err
			}
			r := &suite.Runner{Root: root, Getenv: os.Getenv, Say: l.report.Say}
			if dryRun {
				printSteps(r)
				return r.Run(cmd.Context(), s)
			}
			if err := needRoot(); err != nil {
				return err
			}
			r.Do = func(ctx context.Context, c suite.Command) error { return l.do(ctx, root, c) }
			r.Idle = l.awaitIdle
			r.Judge = func(ctx context.Context, run suite.Run, attempts []suite.Attempt) error {
				return judge(ctx, root, run, attempts)
			}
			r.Load = startLoad
			return r.Run(cmd.Context(), s)
		},
	}
	cmd.Flags().BoolVarP(&dryRun, "dry-run", "n", dryRun, "print the commands only")
	return cmd
}

// printSteps makes a runner print its steps only.
func printSteps(r *suite.Runner) {
	r.Do = func(_ context.Context, c suite.Command) error {
		fmt.Println(c)
		return nil
	}
	r.Idle = func(_ context.Context, load string) error {
		fmt.Println("# wait until the load is at most " + load)
		return nil
	}
	r.Judge = func(_ context.Context, run suite.Run, attempts []suite.Attempt) error {
		fmt.Printf("# judge %d runs: a spec must pass in %d\n", len(attempts), run.Passes())
		return nil
	}
	r.Load = func(_ context.Context, busy int) (func(), error) {
		fmt.Printf("# start %d busy processes, and one that writes and syncs a file\n", busy)
		return func() { fmt.Println("# end them") }, nil
	}
	r.Say = func(format string, args ...any) { fmt.Printf("# "+format+"\n", args...) }
}

// do runs a command of a suite.
func (l *lab) do(ctx context.Context, root string, c suite.Command) error {
	program, args := c.Args[0], c.Args[1:]
	if program == "lab" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		program, args = self, append([]string{"--state=" + l.state}, args...)
	}
	l.report.Say("+ %s", c)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = filepath.Join(root, c.Dir), append(os.Environ(), c.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(c.Args[:min(len(c.Args), 2)], " "), err)
	}
	return nil
}

// awaitIdle waits until the machine is idle. A build that has just ended counts in the load for two minutes.
func (l *lab) awaitIdle(ctx context.Context, limit string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return l.report.Step("wait until the load of the last minute is at most "+limit, func() error {
		return suite.AwaitIdle(ctx, limit, 5*time.Second, func() ([]byte, error) { return os.ReadFile("/proc/loadavg") })
	})
}

// judge decides about specs that ran several times.
func judge(ctx context.Context, root string, run suite.Run, attempts []suite.Attempt) error {
	runs, err := suite.ReadRuns(attempts)
	if err != nil {
		return err
	}
	if values := suite.Values(runs); run.Busy == 0 && len(values) > 0 {
		if err := addTimings(ctx, root, values); err != nil {
			return err
		}
	}
	return suite.Verdict(os.Stdout, runs, run.Passes())
}

// addTimings adds values to the file of all runs, and prints values that grow.
func addTimings(ctx context.Context, root string, values []*suite.Value) error {
	commit, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return fmt.Errorf("find the commit: %w", err)
	}
	trends, err := suite.Record(filepath.Join(root, "_output", timings), strings.TrimSpace(string(commit)), time.Now(), values)
	if err != nil {
		return err
	}
	for _, line := range trends {
		fmt.Println(line)
	}
	return nil
}
