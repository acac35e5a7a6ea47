// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"

	"github.com/kiln-net/kiln/test/checks"
)

// printResult prints one line of the table of checks.
func printResult(w io.Writer, r checks.Result) {
	verdict, detail := "ok  ", r.Detail
	if r.Err != nil {
		verdict, detail = "FAIL", r.Err.Error()
	}
	fmt.Fprintf(w, "  %s  %-4s  %-46s %8s  %s\n", verdict, r.Family, r.Name, r.Took.Round(time.Millisecond), detail)
}
