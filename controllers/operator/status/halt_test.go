// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"testing"
)

func TestResultsOfBothDatabasesAreReported(t *testing.T) {
	lost, waits := &Halt{Reason: "QuorumLost", Message: "northbound lost", Degraded: true}, &Halt{Reason: "Starting", Message: "southbound starts"}
	refused := errors.New("refused")
	for _, c := range []struct {
		name          string
		err           error
		reason, halts string
		rest          error
	}{
		{"nothing", nil, "", "", nil},
		{"an error", refused, "", "", refused},
		{"a halt", lost, "QuorumLost", "northbound lost", nil},
		{"a wrapped halt", fmt.Errorf("phase: %w", lost), "QuorumLost", "northbound lost", nil},
		{"two halts", errors.Join(waits, lost), "Starting", "southbound starts; northbound lost", nil},
		{"two halts of a phase", fmt.Errorf("phase: %w", errors.Join(waits, lost)), "Starting", "southbound starts; northbound lost", nil},
		{"a halt and an error of a phase", fmt.Errorf("phase: %w", errors.Join(lost, refused)), "QuorumLost", "northbound lost", refused},
		{"a halt and an error", errors.Join(lost, refused), "QuorumLost", "northbound lost", refused},
		{"a halt, and nothing", errors.Join(lost, nil), "QuorumLost", "northbound lost", nil},
	} {
		h, rest := divide(c.err)
		if h == nil {
			h = &Halt{}
		}
		if h.Reason != c.reason || h.Message != c.halts || !errors.Is(rest, c.rest) || rest != nil && c.rest == nil {
			t.Errorf("%s: %+v and %v", c.name, h, rest)
		}
		if h.Degraded != errors.Is(c.err, lost) {
			t.Errorf("%s: degraded is %t", c.name, h.Degraded)
		}
	}
}
