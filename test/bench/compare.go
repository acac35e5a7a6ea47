// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// comparison compares one number of two revisions: the medians over their runs, and the ratio new to old of each pair of runs.
type comparison struct {
	Scenario string  `json:"scenario"`
	Metric   string  `json:"metric"`
	Unit     string  `json:"unit,omitempty"`
	Old      float64 `json:"old"`
	New      float64 `json:"new"`
	Ratio    float64 `json:"ratio"`
	Least    float64 `json:"least"`
	Greatest float64 `json:"greatest"`
}

// compare measures two revisions in alternation, each run in a new world, so that a slow phase of the machine affects both.
func compare(ctx context.Context, o options, m machine) (err error) {
	sides := [2]options{o, o}
	if sides[0], err = o.ofOld(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "compare")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var binaries [2]string
	for i, revision := range []string{o.old, o.new} {
		if binaries[i], err = buildRevision(ctx, revision, filepath.Join(dir, fmt.Sprint(i))); err != nil {
			return err
		}
	}
	var runs [2][][]row
	for range o.pairs {
		for i, binary := range binaries {
			run := sides[i]
			run.kiln = binary
			rows, err := measure(ctx, run, (*bench).scenarios)
			if err != nil {
				return err
			}
			runs[i] = append(runs[i], rows)
		}
	}
	comparisons := compareRuns(runs[0], runs[1])
	printComparisons(os.Stdout, m, o.pairs, comparisons)
	return writeJSON(o.json, m, comparisons)
}

// ofOld returns the options of the old revision's runs.
func (o options) ofOld() (options, error) {
	old, err := parse(slices.Concat(o.args, strings.Fields(o.oldFlags)))
	if err != nil {
		return old, fmt.Errorf("-old-flags: %w", err)
	}
	return old, nil
}

// buildRevision builds a commit, independent of the working directory. A revision may also be the path of a binary.
func buildRevision(ctx context.Context, revision, dir string) (string, error) {
	if info, err := os.Stat(revision); err == nil && info.Mode().IsRegular() {
		return revision, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a directory: %w", err)
	}
	archive := filepath.Join(dir, "tree.tar")
	for _, args := range [][]string{
		{"git", "archive", "--output=" + archive, revision}, {"tar", "--extract", "--file=" + archive, "--directory=" + dir},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return build(ctx, dir, dir)
}

// compareRuns pairs the numbers of runs. It leaves out numbers that some run lacks.
func compareRuns(olds, news [][]row) []comparison {
	var all []comparison
	for _, r := range olds[0] {
		old, complete := valuesOf(olds, r)
		changed, both := valuesOf(news, r)
		if !complete || !both {
			continue
		}
		var ratios []float64
		for i := range old {
			if old[i] != 0 {
				ratios = append(ratios, changed[i]/old[i])
			}
		}
		c := comparison{Scenario: r.Scenario, Metric: r.Metric, Unit: r.Unit, Old: median(old), New: median(changed)}
		if len(ratios) > 0 {
			c.Ratio, c.Least, c.Greatest = median(ratios), slices.Min(ratios), slices.Max(ratios)
		}
		all = append(all, c)
	}
	return all
}

// valuesOf returns the values of one number in all runs, or false when a run lacks it.
func valuesOf(runs [][]row, like row) ([]float64, bool) {
	var values []float64
	for _, rows := range runs {
		i := slices.IndexFunc(rows, func(r row) bool { return r.Scenario == like.Scenario && r.Metric == like.Metric })
		if i < 0 {
			return nil, false
		}
		values = append(values, rows[i].Value)
	}
	return values, true
}

// median returns the median of values: of an even number of values, the mean of the two in the middle.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func printComparisons(to io.Writer, m machine, pairs int, all []comparison) {
	fmt.Fprintf(to, "%s; %s, %d runs each, in alternation\n\n", m, m.Revision, pairs)
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "scenario\tmetric\told\tnew\tnew/old\tleast\tgreatest")
	for _, c := range all {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Scenario, c.Metric, strings.TrimSpace(short(c.Old)+" "+c.Unit),
			strings.TrimSpace(short(c.New)+" "+c.Unit), short(c.Ratio), short(c.Least), short(c.Greatest))
	}
	_ = table.Flush() // for people; an error here has no effect
}
