// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Counts are the numbers that the output of a suite has.
type Counts struct {
	// Specs counts specs of ginkgo, and checks of the demo.
	Specs Numbers `json:"specs,omitzero"`
	// Packages counts packages of `go test`.
	Packages Numbers `json:"packages,omitzero"`
	// Mutants counts mutants of hack/mutants: killed ones pass, and surviving ones fail.
	Mutants Numbers `json:"mutants,omitzero"`
	// Seeds of ginkgo and of internal/testing/seed repeat the run.
	Seeds []string `json:"seeds,omitempty"`
}

// Numbers are numbers of tests by their result.
type Numbers struct {
	Passed int `json:"passed"`
	Failed int `json:"failed"`
}

func (n Numbers) total() int { return n.Passed + n.Failed }

func (c Counts) total() int { return c.Specs.total() + c.Packages.total() + c.Mutants.total() }

// String returns the numbers for a table: 128 specs, 2 packages (1 failed).
func (c Counts) String() string {
	var parts []string
	for _, kind := range []struct {
		name string
		Numbers
	}{{"specs", c.Specs}, {"packages", c.Packages}, {"mutants", c.Mutants}} {
		if kind.total() == 0 {
			continue
		}
		part := fmt.Sprintf("%d %s", kind.total(), kind.name)
		if kind.Failed > 0 {
			part += fmt.Sprintf(" (%d failed)", kind.Failed)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// mostSeeds is the highest number of seeds that a record has. A run of all Go tests prints many more.
const mostSeeds = 20

// Lines of output. Lines of ginkgo can have colors. A seed is printed with the name of a file before it.
var (
	colors       = regexp.MustCompile("\x1b\\[[0-9;]*m")
	ginkgoResult = regexp.MustCompile(`^(?:SUCCESS|FAIL)! .*?(\d+) Passed \| (\d+) Failed \| `)
	demoResult   = regexp.MustCompile(`^(\d+) checks passed\.$`)
	conformance  = regexp.MustCompile(`^(\d+) passed, (\d+) failed, \d+ had nothing to do here`)
	mutants      = regexp.MustCompile(`^\d+ mutants: (\d+) killed, (\d+) survived, `)
	goPassed     = regexp.MustCompile(`^ok  \t\S+\t`)
	goFailed     = regexp.MustCompile(`^FAIL\t\S+\t?`)
	ginkgoSeed   = regexp.MustCompile(`^Random Seed: (\d+)`)
	ownSeed      = regexp.MustCompile(`seed: (\d+) \(repeat with KILN_SEED=\d+\)`)
)

// counter is a writer that counts tests in the output of a suite.
type counter struct {
	Counts
	rest []byte
}

// Write counts the complete lines. It never fails.
func (c *counter) Write(p []byte) (int, error) {
	c.rest = append(c.rest, p...)
	for {
		line, rest, complete := bytes.Cut(c.rest, []byte("\n"))
		if !complete {
			return len(p), nil
		}
		c.line(strings.TrimRight(colors.ReplaceAllString(string(line), ""), "\r"))
		c.rest = rest
	}
}

func (c *counter) line(text string) {
	number := func(found []string, i int) int {
		n, _ := strconv.Atoi(found[i]) // the expression has digits only
		return n
	}
	for _, expression := range []*regexp.Regexp{ginkgoResult, conformance} {
		if found := expression.FindStringSubmatch(text); found != nil {
			c.Specs.Passed += number(found, 1)
			c.Specs.Failed += number(found, 2)
		}
	}
	if found := demoResult.FindStringSubmatch(text); found != nil {
		c.Specs.Passed += number(found, 1)
	}
	if found := mutants.FindStringSubmatch(text); found != nil {
		c.Mutants.Passed += number(found, 1)
		c.Mutants.Failed += number(found, 2)
	}
	switch {
	case goPassed.MatchString(text) && !strings.HasSuffix(text, "(cached)") && !strings.HasSuffix(text, "[no tests to run]"):
		c.Packages.Passed++
	case goFailed.MatchString(text):
		c.Packages.Failed++
	}
	for _, expression := range []*regexp.Regexp{ginkgoSeed, ownSeed} {
		found := expression.FindStringSubmatch(text)
		if found != nil && len(c.Seeds) < mostSeeds && !slices.Contains(c.Seeds, found[1]) {
			c.Seeds = append(c.Seeds, found[1])
		}
	}
}
