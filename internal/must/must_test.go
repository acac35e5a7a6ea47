// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package must

import (
	"errors"
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
	if Succeed(r, failure); len(r.fatal) != 1 || r.fatal[0] != any(failure) {
		t.Errorf("the test ends with %v, want the error", r.fatal)
	}
}

func TestValue(t *testing.T) {
	if got := Value(7, nil); got != 7 {
		t.Errorf("got %d", got)
	}
	failure := errors.New("failure")
	defer func() {
		if got := recover(); got != any(failure) {
			t.Errorf("it panicked with %v, want the error", got)
		}
	}()
	Value(0, failure)
	t.Error("an error does not panic")
}
