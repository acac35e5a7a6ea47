// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package panics fails a package of tests if code panicked and the panic was recovered. controller-runtime calls a reconciler
// again after a panic, and a panic in an HTTP handler costs one connection: no assertion of a test detects that.
package panics

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// marks occur in the lines with which Go, controller-runtime, net/http and the daemons of OVN report a panic or a failed
// assertion.
var marks = []string{"Observed a panic", "panic: ", "http: panic serving", "assertion failed", "SIGSEGV"}

var (
	mu   sync.Mutex
	seen []string
)

// Record starts to record panics of this process: panics that Kubernetes' libraries recover, and panics that net/http logs.
func Record() {
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(_ context.Context, r any) {
		add(fmt.Sprintf("%v\n%s", r, debug.Stack()))
	})
	log.SetOutput(scanned{os.Stderr})
}

// Code returns the exit code of a package: 1 instead of 0 if there was a panic. It prints the panics.
func Code(code int) int { return codeOf(os.Stderr, code) }

func codeOf(out io.Writer, code int) int {
	mu.Lock()
	defer mu.Unlock()
	for _, p := range seen {
		fmt.Fprintf(out, "a panic was recovered during the tests: %s\n", p)
	}
	if len(seen) > 0 && code == 0 {
		return 1
	}
	return code
}

// In returns the lines of a log that report a panic.
func In(text string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(line, mark) }) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

func add(what string) {
	mu.Lock()
	defer mu.Unlock()
	seen = append(seen, what)
}

// scanned is a log writer that records the panics in the log.
type scanned struct{ to io.Writer }

// Write implements io.Writer.
func (s scanned) Write(b []byte) (int, error) {
	for _, line := range In(string(bytes.Clone(b))) {
		add(line)
	}
	return s.to.Write(b)
}
