// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kiln-net/kiln/hack/lab/suite"
)

// required returns the names of the suites of which a release needs records: all that run with changes, each night or each week.
func required() []string {
	var names []string
	for _, s := range suite.ThatRun(suite.Change, suite.Night, suite.Week) {
		names = append(names, s.Name)
	}
	return names
}

// state says whether the records have proof that a suite passes with a product, and otherwise why not.
func state(records []Record, target, tree string) (bool, string) {
	i := slices.IndexFunc(records, func(r Record) bool { return r.Target == target && len(r.Settings) == 0 })
	switch {
	case i < 0:
		return false, "no record"
	case records[i].Tree != tree:
		return false, "of another product: run it again"
	case records[i].Result != passed:
		return false, "failed"
	case !records[i].proves(tree):
		return false, "no test was counted"
	}
	return true, "valid"
}

// page returns the records as a table in Markdown, and the targets without proof.
func page(records []Record, targets []string, tree string) (text string, missing []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "Product: `%s`\n\n| suite | evidence | result | tests | minutes | started (UTC) | machine | commit |\n|---|---|---|---|---|---|---|---|\n", tree)
	for _, target := range targets {
		ok, why := state(records, target, tree)
		if !ok {
			missing = append(missing, target)
		}
		row := slices.IndexFunc(records, func(r Record) bool { return r.Target == target && len(r.Settings) == 0 })
		if row < 0 {
			fmt.Fprintf(&b, "| %s | %s | | | | | | |\n", target, why)
			continue
		}
		b.WriteString(line(records[row], why))
	}
	for _, r := range records {
		// Runs with settings prove a part: they are listed, and do not count.
		if len(r.Settings) > 0 && slices.Contains(targets, r.Target) {
			why := "a part"
			if r.Tree != tree {
				why = "a part, of another product"
			}
			b.WriteString(line(r, why))
		}
	}
	return b.String(), missing
}

func line(r Record, evidence string) string {
	name := strings.Join(append([]string{r.Target}, r.Settings...), " ")
	return fmt.Sprintf("| %s | %s | %s | %s | %.0f | %s | %d cores, %d GiB, %s, Linux %s | %.12s |\n", cell(name), evidence, r.Result, r.Counts,
		(time.Duration(r.Seconds) * time.Second).Minutes(), r.Started.UTC().Format("2006-01-02 15:04"), r.Machine.Cores, r.Machine.MemoryGiB,
		r.Machine.Distribution, r.Machine.Kernel, r.Commit)
}

// cell escapes the text of a cell.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// Sentences of a release.
const (
	proven   = "Each suite below passed with exactly the files of this release's product.\n\n"
	unproven = "This release is unproven: it was built without evidence that the suites pass with its product (EVIDENCE=none).\n\n"
)

// releasePage returns the page of a release. Its content depends on the commit only.
func releasePage(records []Record, tree string, without bool) (string, error) {
	table, missing := page(records, required(), tree)
	if len(missing) > 0 && !without {
		return "", fmt.Errorf("no valid evidence for %s: run `make record TARGET=…` for each and commit evidence, or release with EVIDENCE=none", strings.Join(missing, ", "))
	}
	sentence := proven
	if len(missing) > 0 {
		sentence = unproven
	}
	return "# Evidence\n\n" + sentence + table, nil
}
