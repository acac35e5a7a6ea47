// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisortest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"

	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/internal/testing/must"
)

var (
	mu   sync.Mutex
	logs = map[testing.TB]*log{}
	keys [][]byte
)

// Secret registers a private key in PEM format that must not appear in any log of this process. Issue registers its keys itself.
func Secret(key []byte) {
	mu.Lock()
	defer mu.Unlock()
	keys = append(keys, key)
}

// Log returns a logger for the supervisors of a test. At its end the test fails if a private key appears in this log or on
// standard error, where supervisors copy the output of their daemons. Supervisors must end before that check: call Log before
// the test registers their end with Cleanup.
func Log(t testing.TB) logr.Logger {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if logs[t] == nil {
		logs[t] = record(t)
	}
	return testr.NewWithInterface(logs[t], testr.Options{})
}

// log collects the lines of a logger.
type log struct {
	testing.TB
	mu   sync.Mutex
	text bytes.Buffer
}

// Log is part of testr.TestingT.
func (l *log) Log(args ...any) {
	l.Helper()
	l.TB.Log(args...)
	_, _ = fmt.Fprintln(l, args...)
}

func (l *log) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

// record captures standard error, too, until the test ends.
func record(t testing.TB) *log {
	t.Helper()
	l := &log{TB: t}
	read, write, err := os.Pipe()
	must.Succeed(t, err)
	standard, copied := os.Stderr, make(chan error, 1)
	go func() {
		_, err := io.Copy(io.MultiWriter(standard, l), read)
		copied <- err
	}()
	os.Stderr = write
	t.Cleanup(func() {
		os.Stderr = standard
		must.Succeed(t, write.Close())
		must.Succeed(t, <-copied)
		must.Succeed(t, read.Close())
		mu.Lock()
		defer mu.Unlock()
		delete(logs, t)
		for _, key := range keys {
			if daemontest.Shows(l.text.Bytes(), key) {
				t.Error("the log of a supervisor or of its daemons shows a private key")
			}
		}
	})
	return l
}
