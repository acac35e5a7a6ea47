// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import "testing"

func TestTheNumberOfTrackedConnectionsIsOnlyRaised(t *testing.T) {
	for name, c := range map[string]struct {
		have string
		cpus int
		want string // empty: no change
	}{
		"a small node gets the least number":       {"65536", 1, "131072"},
		"a larger node gets a number for each CPU": {"262144", 64, "2097152"},
		"a larger number stays":                    {"999999", 4, ""},
		"an equal number stays":                    {"131072", 4, ""},
		"the module is not loaded":                 {"", 4, ""},
	} {
		want, raise := connections(c.have, c.cpus)
		if !raise {
			want = ""
		}
		if want != c.want {
			t.Errorf("%s: %q, want %q", name, want, c.want)
		}
	}
}
