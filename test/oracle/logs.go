// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"regexp"
	"strings"
)

// Severity of a line in a daemon's log.
type Severity int

// Severities. A Crash is the end of a process or goroutine by a programming error.
const (
	Fine Severity = iota
	Error
	Crash
)

// crashes matches the output of Go, controller-runtime, and the daemons of OVN and Open vSwitch when they crash.
var crashes = regexp.MustCompile(`^panic: |^fatal error: |^SIG[A-Z]+: |Observed a panic|\[recovered\]|^WARNING: DATA RACE|\bassertion\b.* failed|\|EMER\||\|backtrace\(|[Ss]egmentation fault`)

// errorLines matches errors of Kiln's own programs, in JSON or as text, and of the daemons.
var errorLines = regexp.MustCompile(`"level":"(error|dpanic|panic|fatal)"|\t(ERROR|DPANIC|PANIC|FATAL)\t|\|ERR\|`)

// containerLine matches the prefix of a line in a container's log: time, stream, and whether the line is complete.
var containerLine = regexp.MustCompile(`^\S+ (stdout|stderr) [FP] `)

// LogLine returns the severity and the text of a log line, with or without the container runtime's prefix.
func LogLine(line string) (Severity, string) {
	line = strings.TrimRight(containerLine.ReplaceAllString(line, ""), "\r\n")
	switch {
	case crashes.MatchString(line):
		return Crash, line
	case errorLines.MatchString(line):
		return Error, line
	}
	return Fine, line
}
