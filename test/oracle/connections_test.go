// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package oracle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/test/oracle"
)

func TestConnections(t *testing.T) {
	const limit = 2 * time.Second
	for name, c := range map[string]struct {
		record string
		all    int
		lost   string
		broken bool
	}{
		"all answered at once":                 {record: "answered 10.0 10.01 0\nanswered 10.1 10.12 0\nend\n", all: 2},
		"a SYN was lost":                       {record: "answered 10.0 11.02 1\nanswered 11.1 11.12 0\nend\n", all: 2, lost: "a SYN was lost"},
		"a SYN of another connection was lost": {record: "answered 10.0 10.02 1\nend\n", all: 1},
		"a slow machine":                       {record: "answered 10.0 11.02 0\nend\n", all: 1},
		"a very slow answer":                   {record: "answered 10.0 12.02 0\nend\n", all: 1, lost: "answered after 2.02s"},
		"a record of another format":           {record: "answered 10.0 12.02\nend\n", broken: true},
		"a connection was refused":             {record: "failed 10.0 Connection refused\nanswered 11.1 11.12 0\nend\n", all: 2, lost: "Connection refused"},
		"a connection failed in silence":       {record: "failed 10.0\nend\n", all: 1, lost: "failed"},
		"the loop ended too early":             {record: "answered 10.0 10.01 0\n", all: 1, broken: true},
		"nothing was tried":                    {record: "end\n"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := oracle.Connections(c.record)
			if (err != nil) != c.broken || len(list) != c.all {
				t.Errorf("%d connections, %v; want %d, an error: %v", len(list), err, c.all, c.broken)
			}
			lost := oracle.Lost(list, limit)
			if failed := oracle.Failed(list); len(failed) > 0 != strings.Contains(c.record, "failed ") {
				t.Errorf("failed %q", failed)
			}
			if (len(lost) > 0) != (c.lost != "") || !strings.Contains(strings.Join(lost, "\n"), c.lost) {
				t.Errorf("lost %q, want %q", lost, c.lost)
			}
		})
	}
}

func TestOutcomes(t *testing.T) {
	for name, c := range map[string]struct {
		output string
		want   []oracle.Outcome
	}{
		"each client's words": {
			"2 REFUSED\n0\n1 TIMEOUT\n3 OTHER: dial tcp 10.0.0.1:80: connect: no route to host\n",
			[]oracle.Outcome{oracle.Connected, oracle.Timeout, oracle.Refused, oracle.Unreachable},
		},
		"bash's words": {
			"0 bash: connect: Connection refused\n1 bash: connect: Network is unreachable\n2 timed out\n",
			[]oracle.Outcome{oracle.Refused, oracle.Unreachable, oracle.Timeout},
		},
		"a client that cannot run":   {"0 sh: 1: /agnhost: not found\n", nil},
		"an attempt that is missing": {"1 TIMEOUT\n", nil},
		"no output at all":           {"", nil},
		"a number of no attempt":     {"0\n1\n2\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := max(1, len(c.want))
			got, err := oracle.Outcomes(c.output, n)
			if (err != nil) != (c.want == nil) || !slices.Equal(got, c.want) {
				t.Errorf("got %v, %v; want %v", got, err, c.want)
			}
		})
	}
	if arrived := fmt.Sprint(oracle.Connected.Arrived(), oracle.Refused.Arrived(), oracle.Timeout.Arrived(), oracle.Unreachable.Arrived()); arrived != "true true false false" {
		t.Errorf("arrived: %s", arrived)
	}
}
