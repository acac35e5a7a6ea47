// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// exportedAtStart are the metrics with data of a process that has not started anything. All processes are one program, so the packages of
// every process are part of it.
var exportedAtStart, errAtStart = metrics.Registry.Gather()

// TestAProcessDoesNotExportMetricsOfOtherProcesses: a package with metrics without labels registers them when a process uses it.
func TestAProcessDoesNotExportMetricsOfOtherProcesses(t *testing.T) {
	if errAtStart != nil {
		t.Fatal(errAtStart)
	}
	if len(exportedAtStart) == 0 {
		t.Fatal("there are no metrics of Go: this proves nothing")
	}
	for _, family := range exportedAtStart {
		library := false
		for _, prefix := range []string{"go_", "process_", "certwatcher_", "controller_runtime_"} {
			library = library || strings.HasPrefix(family.GetName(), prefix)
		}
		if !library {
			t.Errorf("every process exports %s", family.GetName())
		}
	}
}
