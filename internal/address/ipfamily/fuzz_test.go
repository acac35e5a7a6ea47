// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipfamily

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// FuzzParseRange reads any text as a range. An accepted range contains its ends, has one family, and is read back unchanged from
// `first..last`. The exception is a CIDR with an end in ::ffff:0:0/96, such as ::/80: these addresses are written as IPv4 addresses.
func FuzzParseRange(f *testing.F) {
	for _, seed := range []string{"10.0.0.1", "10.0.0.1..10.0.0.9", "fd00::/64", "..", "::1..", "1.2.3.4/33", "::ffff:1.2.3.4..1.2.3.5", "0.0.0.0/0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRange(s)
		if err != nil {
			return
		}
		if !r.Contains(r.From) || !r.Contains(r.To) || r.From.Zone() != "" || r.To.Zone() != "" {
			t.Errorf("%q is the range %v", s, r)
		}
		if r.From.Is4In6() || r.To.Is4In6() {
			return
		}
		if again, err := ParseRange(fmt.Sprintf("%s..%s", r.From, r.To)); err != nil || again != r {
			t.Errorf("%v reads back as %v, %v", r, again, err)
		}
	})
}

// FuzzParseLists reads any text as a list of CIDRs and as a list of addresses. A list that is accepted has at most one value per family,
// CIDRs without bits after the prefix, no zones and no IPv4 in IPv6, and reads back the same.
func FuzzParseLists(f *testing.F) {
	for _, seed := range []string{"", "10.16.0.0/16,fd00:10:16::/64", " 10.16.0.2 , fd00::2", "::ffff:10.0.0.1", "::ffff:10.0.0.0/104", "fe80::1%eth0", "1.2.3.4/0,"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if cidrs, err := ParseCIDRs(s); err == nil {
			checkList(t, cidrs, ParseCIDRs, netip.Prefix.Addr)
			if slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c != c.Masked() }) {
				t.Errorf("%q is %v", s, cidrs)
			}
		}
		if addrs, err := ParseAddrs(s); err == nil {
			checkList(t, addrs, ParseAddrs, func(a netip.Addr) netip.Addr { return a })
		}
	})
}

func checkList[T interface {
	fmt.Stringer
	comparable
}](t *testing.T, list []T, parse func(string) ([]T, error), addr func(T) netip.Addr) {
	t.Helper()
	if slices.ContainsFunc(list, func(v T) bool { return !isPlain(addr(v)) }) || len(list) > 2 || len(list) == 2 && Of(addr(list[0])) == Of(addr(list[1])) {
		t.Errorf("list %v", list)
	}
	if again, err := parse(Join(list)); err != nil || !slices.Equal(again, list) {
		t.Errorf("%v reads back as %v, %v", list, again, err)
	}
}

func isPlain(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }
