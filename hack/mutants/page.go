// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// The table of verdicts in a page is between these lines.
const (
	tableBegins = "<!-- mutants: written by `go run ./hack/mutants -page` -->"
	tableEnds   = "<!-- end of mutants -->"
)

// testName is marked as code, so that the tests of the documentation check that the test exists.
var testName = regexp.MustCompile(`\bTest\w+`)

// record writes the verdicts to the table in a page, in the order of the mutants. A mutant without a result keeps its row.
func record(page string, mutants []mutant, results map[string]result) error {
	content, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(content), tableBegins)
	old, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q", page, tableBegins, tableEnds)
	}
	known := rowsOf(old)
	var out strings.Builder
	out.WriteString(before + tableBegins + "\n\n| mutant | defect | verdict |\n|---|---|---|\n")
	for _, m := range mutants {
		said := known[m.id]
		if got, tested := results[m.id]; tested {
			said = testName.ReplaceAllString(got.detail, "`$0`")
		}
		if m.survives != "" {
			said = "survives: " + m.survives
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", m.id, m.bug, said)
	}
	out.WriteString("\n" + tableEnds + after)
	return os.WriteFile(page, []byte(out.String()), 0o600)
}

// rowsOf returns the verdicts of a table by id.
func rowsOf(text string) map[string]string {
	rows := map[string]string{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if id := strings.TrimSpace(cells[0]); len(cells) == 3 && strings.HasPrefix(id, "`") {
			rows[strings.Trim(id, "`")] = strings.TrimSpace(cells[2])
		}
	}
	return rows
}
