// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package changed says which targets test what a change touches, besides the gate's own suites.
package changed

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// tested are the files and directories that a target tests, and that the suites of the gate test in part only.
var tested = map[string][]string{
	"test-operator-long": {"controllers/operator", "internal/workload", "api/v1alpha1", "config/rbac", "config/admission"},
	"test-tools":         {"hack", "config", "bundle", "Makefile", "go.mod", "go.sum"},
}

// All returns all targets that Targets may return, sorted.
func All() []string { return slices.Sorted(maps.Keys(tested)) }

// Targets returns the targets whose files differ between the base and the working tree of this directory. The base is the environment variable BASE,
// or the last common commit with origin/main. Without a base nothing is compared: a clone of main has nothing to compare with.
func Targets() (targets []string, compared bool, err error) {
	base := os.Getenv("BASE")
	if base == "" {
		if base = output("merge-base", "HEAD", "origin/main"); base == "" || base == output("rev-parse", "HEAD") {
			return nil, false, nil
		}
	}
	for target, paths := range tested {
		err := exec.Command("git", append([]string{"diff", "--quiet", base, "--"}, paths...)...).Run()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && exit.ExitCode() == 1:
			targets = append(targets, target)
		case err != nil:
			return nil, true, fmt.Errorf("compare with %s: %w", base, err)
		}
	}
	slices.Sort(targets)
	return targets, true, nil
}

// output returns the line that git prints, and nothing if it fails.
func output(arguments ...string) string {
	out, err := exec.Command("git", arguments...).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
