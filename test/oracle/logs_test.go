// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package oracle_test

import (
	"testing"

	"github.com/kiln-net/kiln/test/oracle"
)

func TestLogLine(t *testing.T) {
	for line, want := range map[string]oracle.Severity{
		`2026-11-22T12:00:00.1Z stderr F {"level":"info","msg":"no panic: everything is fine"}`:                   oracle.Fine,
		`2026-11-22T12:00:00.1Z stderr F {"level":"error","msg":"Reconciler error"}`:                              oracle.Error,
		`2026-11-22T12:00:00.1Z stderr F panic: runtime error: invalid memory address or nil pointer dereference`: oracle.Crash,
		`2026-11-22T12:00:00.1Z stderr F fatal error: concurrent map writes`:                                      oracle.Crash,
		`2026-11-22T12:00:00.1Z stderr F {"level":"error","msg":"Observed a panic","panic":"boom"}`:               oracle.Crash,
		`2026-11-22T12:00:00.1Z stderr F SIGABRT: abort`:                                                          oracle.Crash,
		`WARNING: DATA RACE`: oracle.Crash,
		`2026-11-22T12:00:00.1Z stderr F 2026-11-22T12:00:00Z|00007|util|EMER|lib/ovsdb-idl.c:42: assertion row failed in f()`: oracle.Crash,
		`2026-11-22T12:00:00.1Z stderr F 2026-11-22T12:00:00Z|00007|jsonrpc|ERR|tcp: send error`:                               oracle.Error,
		`2026-11-22T12:00:00.1Z stderr F 2026-11-22T12:00:00Z|00007|reconnect|INFO|connected`:                                  oracle.Fine,
		`2026-11-22T12:00:00.1Z stderr F 2026-11-22T12:00:00Z|00007|timeval|WARN|Unreasonably long 1203ms poll interval`:       oracle.Fine,
	} {
		if got, text := oracle.LogLine(line); got != want || text == "" {
			t.Errorf("%s\ngot %d %q, want %d", line, got, text, want)
		}
	}
}
