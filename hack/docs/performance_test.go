// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/golden"
)

var (
	burstRow  = regexp.MustCompile(`(?m)^\| ([\d,]+(?: on [\d,]+)?) \| (on|paused) \| (\d+\.\d+)[ |]`)
	burstPlot = regexp.MustCompile("(?s)(```mermaid\n).*?(```)")
)

// TestPlotFollowsTheTable compares the plot in docs/development/performance.md with the table of bursts above it; -update draws the plot.
func TestPlotFollowsTheTable(t *testing.T) {
	path := filepath.Join(root, "docs/development/performance.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var names, times, bar []string
	for _, row := range burstRow.FindAllStringSubmatch(string(page), -1) {
		names, times, bar = append(names, `"`+row[1]+", "+row[2]+`"`), append(times, row[3]), append(bar, "1.5")
	}
	if len(names) < 2 || len(burstPlot.FindAll(page, -1)) != 1 {
		t.Fatalf("the page has %d rows of bursts; it needs two, and one plot", len(names))
	}
	list := func(values []string) string { return "[" + strings.Join(values, ", ") + "]\n" }
	plot := "xychart-beta\n" +
		"    title \"Bursts, ovn-northd on or paused: time as a multiple of the floor (line: the bar)\"\n" +
		"    x-axis " + list(names) +
		"    y-axis \"× floor\" 0 --> 2\n" +
		"    bar " + list(times) +
		"    line " + list(bar)
	golden.Compare(t, path, burstPlot.ReplaceAll(page, []byte("${1}"+plot+"${2}")))
}
