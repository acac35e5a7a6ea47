// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Gate runs the stages of `make test`, each a make target, and prints the failures of all of them at its end. Stages of a change to what the gate tests in part
// only (hack/changed) come last.
//
// A stage has a budget in seconds. A stage that exceeds it prints its ten slowest packages or specs. With KILN_BUDGETS set, as CI sets it, a stage that takes twice
// its budget fails the gate, unless other processes used the machine: then the duration says nothing. Idle machines differ in speed by less than two.
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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kiln-net/kiln/hack/changed"
	"github.com/kiln-net/kiln/hack/lab/suite"
	"github.com/kiln-net/kiln/internal/testing/gate"
)

// stage is a part of the gate.
type stage struct {
	// target of the Makefile.
	target string
	// budget is about a third more than the stage takes on two idle cores with cold test caches. The gate's goal is 25 minutes: the budgets stay below 2,000 s
	// together, and raising one needs a page in docs/decisions.
	budget time.Duration
}

var stages = []stage{
	{"verify", 120 * time.Second},
	{"lint", 340 * time.Second},
	{"test-unit", 820 * time.Second},
	{"test-smoke", 700 * time.Second},
}

// logDir has the output of each stage.
const logDir = "_output/gate"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

// run runs the named stages, or all of them, and prints to out.
func run(ctx context.Context, out io.Writer, names []string) error {
	if err := os.MkdirAll(logDir, 0o755); err != nil {
		return fmt.Errorf("directory of the logs: %w", err)
	}
	seed, err := treeSeed(ctx)
	if err != nil {
		return err
	}
	env := append(environment(), "KILN_SEEDS="+strconv.FormatUint(uint64(seed), 10))
	all, err := withChanged(out)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(s stage) bool { return s.target == name }) {
			return fmt.Errorf("no stage %q", name)
		}
	}
	var results []result
	for _, s := range all {
		if len(names) > 0 && !slices.Contains(names, s.target) {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		results = append(results, runStage(ctx, out, s, env))
	}
	failed := summarize(out, results, os.Getenv("KILN_BUDGETS") != "")
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("the gate was ended: %w", err)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d stages failed", failed, len(results))
	}
	return nil
}

// environment returns the variables of the stages: a shell must not choose other tests or labs.
func environment() []string {
	variables := suite.General()
	return slices.DeleteFunc(gate.Environment(os.Environ()), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(variables, name)
	})
}

// withChanged returns the stages, and without a budget the targets that test what differs from the main branch.
func withChanged(out io.Writer) ([]stage, error) {
	targets, compared, err := changed.Targets()
	if !compared {
		fmt.Fprintf(out, "=== no commit to compare with (BASE): not run: %s\n", strings.Join(changed.All(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("find changed files: %w", err)
	}
	all := slices.Clone(stages)
	for _, target := range targets {
		all = append(all, stage{target: target})
	}
	return all, nil
}

// result is a stage that has ended.
type result struct {
	stage
	took time.Duration
	err  error
	log  string
	// idle is false if other processes used the machine before, after or during the stage.
	idle bool
}

// runStage runs a stage. It copies the output to out and to a file.
func runStage(ctx context.Context, out io.Writer, s stage, env []string) result {
	fmt.Fprintf(out, "=== %s began at %s\n", s.target, time.Now().Format(time.TimeOnly))
	r := result{stage: s, log: filepath.Join(logDir, s.target+".log")}
	file, err := os.Create(r.log)
	if err != nil {
		r.err = err
		return r
	}
	defer file.Close()
	before := idle(ctx)
	machine := readCPU()
	began := time.Now()
	cmd := exec.CommandContext(ctx, "make", "--keep-going", "--no-print-directory", s.target)
	cmd.Env = env
	cmd.Stdout = io.MultiWriter(out, file)
	cmd.Stderr = cmd.Stdout
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	r.err = cmd.Run()
	r.took = time.Since(began)
	r.idle = before && readCPU().stolenSince(machine) < mostStolen && idle(ctx)
	verdict := "passed"
	if r.err != nil {
		verdict = "FAILED"
	}
	fmt.Fprintf(out, "=== %s %s after %d s\n", s.target, verdict, int(r.took.Seconds()))
	return r
}

// summarize prints the failures and the durations of all stages, and returns the number of stages that failed.
func summarize(out io.Writer, results []result, budgets bool) int {
	failed := 0
	for _, r := range results {
		if r.err != nil {
			text, err := os.ReadFile(r.log)
			fmt.Fprintf(out, "\n=== failures of %s (all of its output is in %s): %v\n%s", r.target, r.log, errors.Join(r.err, err), failures(string(text)))
		}
	}
	fmt.Fprintf(out, "\n=== stages\n")
	total := time.Duration(0)
	for _, r := range results {
		total += r.took
		verdict := "passed"
		over := r.budget > 0 && r.took > r.budget
		twice := over && r.took > 2*r.budget
		switch {
		case r.err != nil:
			verdict = "FAILED"
		case over && !r.idle:
			verdict = "passed; exceeds its budget, but other processes used the machine"
		case twice && budgets:
			verdict = "FAILED: exceeds twice its budget: make it faster, or move a part to another target"
		case twice:
			verdict = "passed; exceeds twice its budget, which fails CI"
		case over:
			verdict = "passed; exceeds its budget: make it faster, or move a part to another target, unless this machine is slow"
		}
		if strings.HasPrefix(verdict, "FAILED") {
			failed++
		}
		fmt.Fprintf(out, "%-18s %5d s of %5d s  %s\n", r.target, int(r.took.Seconds()), int(r.budget.Seconds()), verdict)
		if over {
			text, _ := os.ReadFile(r.log)
			fmt.Fprintf(out, "the slowest of %s:\n%s", r.target, slowest(string(text), 10))
		}
	}
	fmt.Fprintf(out, "%-18s %5d s\n", "all", int(total.Seconds()))
	return failed
}

// treeSeed returns the first 32 bits of the hash of the committed tree. The gate's random tests start from it: the same tree has the same result.
func treeSeed(ctx context.Context) (uint32, error) {
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "HEAD^{tree}")
	cmd.Stderr = os.Stderr
	hash, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("hash of the tree, which the seeds of random tests follow: the gate runs in a clone: %w", err)
	}
	return seedOf(strings.TrimSpace(string(hash)))
}

func seedOf(hash string) (uint32, error) {
	if len(hash) < 8 {
		return 0, fmt.Errorf("hash of the tree: %q is too short", hash)
	}
	seed, err := strconv.ParseUint(hash[:8], 16, 32)
	if err != nil {
		return 0, fmt.Errorf("hash of the tree: %w", err)
	}
	return uint32(seed), nil
}
