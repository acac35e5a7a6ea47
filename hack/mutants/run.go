// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// verdict is the outcome of a mutant.
type verdict string

const (
	killed   verdict = "killed"
	survived verdict = "SURVIVED"
	// invalid means that the entry of the table has an error.
	invalid verdict = "INVALID"
)

// result is a verdict with the test that detected the mutant, or the reason.
type result struct {
	verdict verdict
	detail  string
}

// runner runs tests.
type runner struct {
	// root is the root of the repository; empty for the working directory.
	root    string
	timeout time.Duration
	limit   time.Duration
}

// baseline runs the tests that the mutants need without a mutant. A mutant would count as killed when they fail for another reason.
func (r runner) baseline(ctx context.Context, mutants []mutant) error {
	var packages []string
	for _, m := range mutants {
		packages = append(packages, m.packages()...)
	}
	slices.Sort(packages)
	for _, name := range slices.Compact(packages) {
		if out, err := r.goTest(ctx, "", []string{name}); err != nil {
			return fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", name, err, out)
		}
	}
	return nil
}

// test runs the tests of a mutant.
func (r runner) test(ctx context.Context, m mutant) result {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return result{invalid, err.Error()}
	}
	defer os.RemoveAll(dir)
	root := r.root
	if root == "" {
		if root, err = os.Getwd(); err != nil {
			return result{invalid, err.Error()}
		}
	}
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return result{invalid, err.Error()}
	}
	arguments := []string{"-count=1", "-failfast", "-v"}
	if m.run != "" {
		arguments = append(arguments, "-run", m.run)
	}
	out, err := r.goTest(ctx, overlay, append(arguments, m.packages()...))
	return judge(string(out), err)
}

// goTest runs go test. The overlay is in GOFLAGS, so that programs which a test builds with the go command have the mutant, too.
func (r runner) goTest(ctx context.Context, overlay string, arguments []string) ([]byte, error) {
	// Only the go command builds and runs tests, and applies an overlay.
	test := exec.CommandContext(ctx, "go", append([]string{"test", "-vet=off", "-timeout", r.timeout.String()}, arguments...)...)
	test.Dir = r.root
	test.Env = append(os.Environ(), eventually.LimitVariable+"="+r.limit.String())
	if overlay != "" {
		test.Env = append(test.Env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	return test.CombinedOutput()
}

var (
	failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	slowWait   = regexp.MustCompile(`(?m): (\S+) waited \S+, more than`) // of eventually.Main
	panics     = regexp.MustCompile(`(?m)^(?:panic|fatal error): (.*)$`)
	hangs      = regexp.MustCompile(`(?m)^panic: test timed out after .*\n(?:\s+running tests:\n\s+(\S+))?`)
	notBuilt   = regexp.MustCompile(`(?m)^FAIL\s+\S+ \[(?:build|setup) failed\]`)
	ranATest   = regexp.MustCompile(`(?m)^=== RUN `)
)

// judge returns the verdict on the output and the error of go test -v.
func judge(out string, err error) result {
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		return result{invalid, err.Error()}
	case notBuilt.MatchString(out):
		return result{invalid, "it does not compile: " + strings.Join(strings.Fields(out), " ")}
	case err == nil && !ranATest.MatchString(out):
		return result{invalid, "no test matches its run expression"}
	case err == nil:
		return result{survived, "all tests pass"}
	}
	if found := failedTest.FindAllStringSubmatch(out, -1); len(found) > 0 {
		name, _, _ := strings.Cut(found[0][1], "/")
		return result{killed, "killed by " + name}
	}
	if found := hangs.FindStringSubmatch(out); found != nil {
		return result{killed, strings.TrimSpace("killed by a test that hangs: " + found[1])}
	}
	if found := panics.FindStringSubmatch(out); found != nil {
		return result{killed, "killed by a panic: " + found[1]}
	}
	if found := slowWait.FindStringSubmatch(out); found != nil {
		return result{killed, "killed by a wait of " + found[1] + " that takes too long"}
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return result{invalid, "no test fails, and go test does: " + strings.Join(lines[max(0, len(lines)-5):], "; ")}
}
