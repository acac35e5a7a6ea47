// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// page collects the written lines and closes heard at the first line that contains mark.
type page struct {
	bytes.Buffer
	mark  string
	heard chan struct{}
	once  sync.Once
}

func (p *page) Write(line []byte) (int, error) {
	if strings.Contains(string(line), p.mark) {
		p.once.Do(func() { close(p.heard) })
	}
	return p.Buffer.Write(line)
}

func TestStepReportsStartHeartbeatAndEnd(t *testing.T) {
	out := page{mark: "still at it", heard: make(chan struct{})}
	r := New(&out)
	r.every = time.Millisecond
	if err := r.Step("build", func() error { <-out.heard; return nil }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"..  build\n", "build: still at it after", "ok  build ("} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestStepNamesTheStepThatFailed(t *testing.T) {
	var out bytes.Buffer
	cause := errors.New("disk full")
	err := New(&out).Step("unpack", func() error { return cause })
	if !errors.Is(err, cause) || err.Error() != "unpack: disk full" {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), "FAIL  unpack") {
		t.Errorf("no failure line in:\n%s", out.String())
	}
}
