// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipfamily

import (
	"net/netip"
	"testing"
)

func TestParseRanges(t *testing.T) {
	tests := []struct{ name, in, want, err string }{
		{name: "an address", in: "10.0.0.1", want: "10.0.0.1"},
		{name: "a range", in: "10.0.0.1..10.0.0.9", want: "10.0.0.1-10.0.0.9"},
		{name: "a range of one", in: "fd00::1..fd00::1", want: "fd00::1"},
		{name: "a CIDR", in: "10.0.0.0/30", want: "10.0.0.0-10.0.0.3"},
		{name: "backwards", in: "10.0.0.9..10.0.0.1", err: "ends before it begins"},
		{name: "two families", in: "10.0.0.1..fd00::1", err: "of two families"},
		{name: "an open range", in: "10.0.0.1..", err: `"" is not an IP address`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseRanges([]string{tt.in})
			checkError(t, err, tt.err)
			if Join(got) != tt.want {
				t.Errorf("got %q, want %q", Join(got), tt.want)
			}
		})
	}
}

func TestRangeRelations(t *testing.T) {
	parse := func(s string) Range {
		r, err := ParseRange(s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	v4, v6 := parse("10.0.0.10..10.0.0.20"), parse("::/0")
	if !v4.Contains(netip.MustParseAddr("10.0.0.20")) || v4.Contains(netip.MustParseAddr("10.0.0.21")) || v6.Contains(v4.From) {
		t.Error("Contains must take the last address, and only addresses of its family")
	}
	if !v4.Overlaps(parse("10.0.0.20..10.0.0.30")) || v4.Overlaps(parse("10.0.0.21")) || v4.Overlaps(v6) {
		t.Error("Overlaps must count the ends, and only ranges of one family")
	}
}
