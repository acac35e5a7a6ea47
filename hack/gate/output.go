// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// failing matches the lines that say what failed in the output of a stage: of go test, ginkgo, golangci-lint, compilers and make.
var failing = regexp.MustCompile(`^\s*--- FAIL: |^(FAIL|panic:|fatal error:)|^\s*\[(FAIL|FAILED|PANICKED|TIMEDOUT|INTERRUPTED)\]|^[\w./-]+\.go:\d+(:\d+)?: |^make(\[\d+\])?: \*\*\*|^generated files differ|^\S+\.ya?ml:\d+:`)

// mostFailures is the number of lines that failures returns. The log has the others.
const mostFailures = 60

// failures returns the lines of a stage's output that say what failed, or its last lines if none does.
func failures(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	var found []string
	for i, line := range lines {
		if !failing.MatchString(plain(line)) {
			continue
		}
		found = append(found, plain(line))
		// The lines below a failed test have its messages.
		for j := i + 1; j < len(lines) && j <= i+3 && strings.HasPrefix(strings.TrimSpace(line), "--- FAIL: ") && strings.HasPrefix(lines[j], "  "); j++ {
			found = append(found, plain(lines[j]))
		}
	}
	if len(found) == 0 {
		found = lines[max(0, len(lines)-20):]
	}
	if more := len(found) - mostFailures; more > 0 {
		found = append(found[:mostFailures], fmt.Sprintf("… %d more lines", more))
	}
	return strings.Join(slices.Compact(found), "\n") + "\n"
}

// colors are the sequences with which ginkgo colors its output.
var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

func plain(line string) string { return colors.ReplaceAllString(line, "") }

var (
	// goPackage matches go test's line of a package with its duration.
	goPackage = regexp.MustCompile(`^(?:ok|FAIL)\s+(\S+)\s+([0-9.]+)s`)
	// ginkgoPlace matches ginkgo's line with the place of a spec. The line before has its name.
	ginkgoPlace = regexp.MustCompile(`/test/e2e/\w+_test\.go:\d+$`)
	// ginkgoEnd matches ginkgo's line at the end of a spec, with its duration.
	ginkgoEnd = regexp.MustCompile(`^• (?:\[[A-Z]+\] )?\[([0-9.]+) seconds\]`)
)

// slowest returns the n packages or specs of a stage's output that took longest, one per line.
func slowest(text string, n int) string {
	type one struct {
		name    string
		seconds float64
	}
	var all []one
	add := func(name, seconds string) {
		took, _ := strconv.ParseFloat(seconds, 64)
		all = append(all, one{name, took})
	}
	spec, before := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(plain(line))
		if m := goPackage.FindStringSubmatch(line); m != nil {
			add(m[1], m[2])
		} else if ginkgoPlace.MatchString(line) {
			spec = before
		} else if m := ginkgoEnd.FindStringSubmatch(line); m != nil {
			add(spec, m[1])
		}
		before = line
	}
	slices.SortStableFunc(all, func(a, b one) int { return cmp.Compare(b.seconds, a.seconds) })
	lines := &strings.Builder{}
	for _, o := range all[:min(n, len(all))] {
		fmt.Fprintf(lines, "%8.1f s  %s\n", o.seconds, o.name)
	}
	return lines.String()
}
