// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

// ReportVariable is an environment variable with the path of a file. With it, Main appends late waits to that file, one JSON object a line, and
// does not fail because of them: the gate must have the same result on a busy machine.
const ReportVariable = "KILN_WAITS"

// lateWait is a wait that exceeded its limit. Durations are in seconds.
type lateWait struct {
	Package string  `json:"package"`
	Test    string  `json:"test"`
	Place   string  `json:"place"`
	Seconds float64 `json:"seconds"`
	Limit   float64 `json:"limit"`
	Base    float64 `json:"base"`
	// Factor is how many times slower than the reference the machine was.
	Factor float64 `json:"factor"`
}

// String describes the wait for the person who reads the output of the tests.
func (w lateWait) String() string {
	return fmt.Sprintf("%s: %s waited %.3f s, more than %.3f s (%g s at %.1f times the reference): an event is missing, or the wait belongs into the list of Main",
		w.Place, w.Test, w.Seconds, w.Limit, w.Base, w.Factor)
}

// report appends waits to the file of ReportVariable, if it is set, and reports whether it did. Several packages append to it at the same time:
// one write has all lines.
func report(late []lateWait) (bool, error) {
	path := os.Getenv(ReportVariable)
	if path == "" || len(late) == 0 {
		return false, nil
	}
	var lines []byte
	for _, w := range late {
		line, err := json.Marshal(w)
		if err != nil {
			return false, fmt.Errorf("report late waits: %w", err)
		}
		lines = append(append(lines, line...), '\n')
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return false, fmt.Errorf("report late waits: %w", err)
	}
	defer file.Close()
	if _, err := file.Write(lines); err != nil {
		return false, fmt.Errorf("report late waits: %w", err)
	}
	return true, nil
}

// testedPackage returns the import path of the package whose tests this process runs.
func testedPackage() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return strings.TrimSuffix(info.Path, ".test")
	}
	return ""
}
