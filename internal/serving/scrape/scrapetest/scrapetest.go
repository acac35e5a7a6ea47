// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scrapetest measures scrapes: the number of series and the duration with few pods and with many.
package scrapetest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// variable names the file to which Report appends. With it the sizes are those of a large cluster: `make bench BENCH=metrics`.
const variable = "KILN_SCRAPES"

// Growth is the ratio of the two sizes that tests compare.
const Growth = 10

// Size returns the larger of the two sizes.
func Size(small, large int) int {
	if os.Getenv(variable) == "" {
		return small
	}
	return large
}

// Series returns the number of series in metrics in Prometheus's text format.
func Series(text string) int {
	n := 0
	for line := range strings.Lines(text) {
		if line != "\n" && !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}

const (
	scrapes = 5
	// pause exceeds the time for which processes serve the same figures again.
	pause = 1100 * time.Millisecond
)

// Report measures scrapes of a process, if results are wanted.
func Report(t testing.TB, process string, scrape func() string) {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		return
	}
	var took []time.Duration
	text := ""
	for range scrapes {
		time.Sleep(pause) // a measurement on request: the next figures exist only after this time
		began := time.Now()
		text = scrape()
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fmt.Fprintf(file, "%-52s %6d series %8d bytes %8.1f ms\n", process, Series(text), len(text), took[scrapes/2].Seconds()*1000)
}
