// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// suite is the built tests of a package.
type suite struct {
	options
	program, directory string
}

func (s suite) build(ctx context.Context, overlay string) error {
	// Only the go command applies an overlay (go help build), and no library builds tests.
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", s.program, "./"+s.directory).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the tests of %s: %w\n%s", s.directory, err, out)
	}
	if _, err := os.Stat(s.program); err != nil {
		return fmt.Errorf("%s has no tests: name the directory whose tests set the controller up", s.directory)
	}
	return nil
}

var (
	failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	reason     = regexp.MustCompile(`(?m)^\s+\w+\.go:\d+: (?:after .*\n(?:\s+.*\n)*|.*$)`)
)

// without runs the tests without the source id ("" is none) and returns the first failure, and whether all tests passed.
func (s suite) without(ctx context.Context, id string) (result string, passed bool, err error) {
	// The built test program runs as its own process: each run starts with fresh state, and a hang ends with -test.timeout.
	test := exec.CommandContext(ctx, s.program, "-test.failfast", "-test.timeout", s.timeout.String(), "-test.run", s.tests)
	test.Dir = filepath.Clean(s.directory)
	test.Env = append(os.Environ(), variable+"="+id, eventually.LimitVariable+"="+s.limit.String())
	out, err := test.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "", false, ctx.Err()
	case err == nil:
		return "NOT SEEN", true, nil
	}
	if tests := failedTest.FindAllSubmatch(out, -1); len(tests) > 0 {
		result = "seen by " + string(tests[0][1])
		if why := reason.FindAll(out, -1); len(why) > 0 {
			result += ": " + shorten(strings.Join(strings.Fields(string(why[len(why)-1])), " "), 300)
		}
		return result, false, nil
	}
	if strings.Contains(string(out), "panic: test timed out") {
		return "seen: the tests hang", false, nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return "seen: " + shorten(strings.Join(lines[max(0, len(lines)-3):], "; "), 400), false, nil
}

func shorten(text string, length int) string {
	if len(text) > length {
		return text[:length] + "…"
	}
	return text
}
