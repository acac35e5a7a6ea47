// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package must

import (
	"errors"
	"fmt"
	"testing"
)

// recorder is a test that records its end.
type recorder struct {
	testing.TB
	fatal []any
}

func (*recorder) Helper()             {}
func (r *recorder) Fatal(args ...any) { r.fatal = append(r.fatal, args...) }

func TestSucceed(t *testing.T) {
	r, failure := &recorder{}, errors.New("failure")
	if Succeed(r, nil); len(r.fatal) > 0 {
		t.Errorf("without an error the test ends with %v", r.fatal)
	}
	if Succeed(r, failure); fmt.Sprint(r.fatal) != "[failure]" {
		t.Errorf("the test ends with %v, want the error", r.fatal)
	}
}

func TestValue(t *testing.T) {
	if got := Value(7, nil); got != 7 {
		t.Errorf("got %d", got)
	}
	defer func() {
		if got := recover(); fmt.Sprint(got) != "failure" {
			t.Errorf("it panicked with %v, want the error", got)
		}
	}()
	Value(0, errors.New("failure"))
	t.Error("an error does not panic")
}
