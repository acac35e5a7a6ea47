// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestStepReportsStartHeartbeatAndEnd(t *testing.T) {
	var out bytes.Buffer
	r := New(&out)
	r.every = time.Millisecond
	if err := r.Step("build", func() error { <-time.After(20 * time.Millisecond); return nil }); err != nil {
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
