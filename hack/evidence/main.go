// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command evidence runs suites and records their results for the files of the product that they tested, and checks whether a release has the records
// that it needs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/suite"
	"github.com/kiln-net/kiln/internal/testing/gate"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := &cobra.Command{
		Use: "evidence", Short: "Record the results of suites, and check the records of a release", SilenceUsage: true, SilenceErrors: true,
	}
	cmd.AddCommand(recordCommand(), checkCommand(), releaseCommand())
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "evidence:", err)
		os.Exit(1)
	}
}

func recordCommand() *cobra.Command {
	return &cobra.Command{
		Use: "record TARGET...", Short: "Make targets and write a record of each to " + directory, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, err := prepare.Source()
			if err != nil {
				return err
			}
			targets, err := membersOf(args)
			if err != nil {
				return err
			}
			r := &recorder{root: root, getenv: os.Getenv, run: runMake}
			var failures []error
			for _, target := range targets {
				failures = append(failures, r.record(cmd.Context(), target))
				if cmd.Context().Err() != nil {
					break
				}
			}
			return errors.Join(failures...)
		},
	}
}

// recorder runs suites and writes records of them.
type recorder struct {
	root   string
	getenv func(string) string
	// run makes a target. It copies the output to a writer.
	run func(ctx context.Context, root, target string, output io.Writer) error
}

// record runs a suite and writes its record, also if it fails. An interrupted run has no result.
func (r *recorder) record(ctx context.Context, target string) error {
	s, err := suite.Find(target)
	if err != nil {
		return err
	}
	if err := committed(ctx, r.root); err != nil {
		return err
	}
	tree, commit, err := productOf(ctx, r.root)
	if err != nil {
		return err
	}
	machine, err := thisMachine()
	if err != nil {
		return err
	}
	record := Record{
		Target: s.Name, Settings: s.Settings(r.getenv), Result: passed, Tree: tree, Commit: commit, Started: time.Now().UTC().Truncate(time.Second), Machine: machine,
	}
	begun := time.Now()
	output := &counter{}
	exit := r.run(ctx, r.root, s.Name, output)
	if ctx.Err() != nil {
		return fmt.Errorf("%s was interrupted: %w", s.Name, ctx.Err())
	}
	record.Seconds, record.Counts = int(time.Since(begun).Seconds()), output.Counts
	if exit != nil {
		record.Result = failed
	}
	after, _, err := productOf(ctx, r.root)
	if err := errors.Join(err, committed(ctx, r.root)); err != nil {
		return fmt.Errorf("%s may have tested other files: %w", s.Name, err)
	}
	switch {
	case after != tree:
		return fmt.Errorf("the product changed while %s ran: there is no record of it", s.Name)
	case record.total() == 0:
		return errors.Join(exit, fmt.Errorf("the output of %s has no result of a test: there is no record of it", s.Name))
	}
	if err := record.write(r.root); err != nil {
		return err
	}
	fmt.Printf("%s %s: %s; the record is %s\n", s.Name, record.Result, record.Counts, filepath.Join(directory, record.file()))
	if exit != nil {
		return fmt.Errorf("%s failed: %w", s.Name, exit)
	}
	return nil
}

// runMake makes a target, and copies its output to the terminal as well.
func runMake(ctx context.Context, root, target string, output io.Writer) error {
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", target)
	cmd.Env = gate.Environment(os.Environ())
	both := io.MultiWriter(os.Stdout, output)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = root, os.Stdin, both, both
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd.Run()
}

func checkCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check [TARGET...]", Short: "Print the records, and fail if a suite has no valid one; by default those that a release needs",
		RunE: func(cmd *cobra.Command, args []string) error {
			root, err := prepare.Source()
			if err != nil {
				return err
			}
			targets := required()
			if len(args) > 0 {
				if targets, err = membersOf(args); err != nil {
					return err
				}
			}
			return check(cmd.Context(), cmd.OutOrStdout(), root, targets)
		},
	}
}

// membersOf returns the suites of targets that consist of several, and other targets themselves.
func membersOf(names []string) ([]string, error) {
	var members []string
	for _, name := range names {
		s, err := suite.Find(name)
		if err != nil {
			return nil, err
		}
		members = append(members, s.Members()...)
	}
	return members, nil
}

func check(ctx context.Context, out io.Writer, root string, targets []string) error {
	if err := committed(ctx, root); errors.Is(err, errChanged) {
		fmt.Fprintf(out, "The table is about HEAD: %v\n\n", err)
	} else if err != nil {
		return err
	}
	tree, records, err := known(ctx, root)
	if err != nil {
		return err
	}
	text, missing := page(records, targets, tree)
	fmt.Fprint(out, text)
	if len(missing) > 0 {
		return fmt.Errorf("no valid evidence for %s", strings.Join(missing, ", "))
	}
	return nil
}

// known returns the hash of the product in HEAD, and the records.
func known(ctx context.Context, root string) (tree string, records []Record, err error) {
	if tree, _, err = productOf(ctx, root); err != nil {
		return "", nil, err
	}
	records, err = readRecords(root)
	return tree, records, err
}

func releaseCommand() *cobra.Command {
	dist, without := "dist", false
	cmd := &cobra.Command{
		Use: "release", Short: "Write the page of evidence of a release, which needs a valid record of each suite", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := prepare.Source()
			if err != nil {
				return err
			}
			return release(cmd.Context(), root, filepath.Join(root, dist), without)
		},
	}
	cmd.Flags().StringVar(&dist, "dist", dist, "directory of the release")
	cmd.Flags().BoolVar(&without, "without", without, "mark the release as unproven if a record is missing or not valid")
	return cmd
}

// pageFile is the page of evidence in a release.
const pageFile = "EVIDENCE.md"

func release(ctx context.Context, root, dist string, without bool) error {
	tree, records, err := known(ctx, root)
	if err != nil {
		return err
	}
	text, err := releasePage(records, tree, without)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dist, pageFile), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the page of evidence: %w", err)
	}
	return nil
}
