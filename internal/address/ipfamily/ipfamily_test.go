// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipfamily

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestParseCIDRs(t *testing.T) {
	tests := []struct {
		name, in, want, protocol, err string
	}{
		{name: "nothing is no CIDRs"},
		{name: "one family", in: "10.16.0.0/16", want: "10.16.0.0/16", protocol: ProtocolIPv4},
		{name: "host bits are cleared", in: "10.16.1.1/16", want: "10.16.0.0/16", protocol: ProtocolIPv4},
		{name: "both families keep their order", in: "fd00:10:16::/112, 10.16.0.0/16", want: "fd00:10:16::/112,10.16.0.0/16", protocol: ProtocolDual},
		{name: "IPv6 is written in its shortest form", in: "fd00:0::0/64", want: "fd00::/64", protocol: ProtocolIPv6},
		{name: "two of one family are refused", in: "10.16.0.0/16,10.17.0.0/16", err: "more than one value of family IPv4"},
		{name: "an address is no CIDR", in: "10.16.0.1", err: `"10.16.0.1" is not a CIDR`},
		{name: "an empty element is refused", in: "10.16.0.0/16,", err: `"" is not a CIDR`},
		{name: "IPv4 in IPv6 is refused", in: "::ffff:10.0.0.0/104", err: "write the IPv4 CIDR"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseCIDRs(tt.in)
			checkError(t, err, tt.err)
			if Join(got) != tt.want || Protocol(got) != tt.protocol {
				t.Errorf("got %q (%s), want %q (%s)", Join(got), Protocol(got), tt.want, tt.protocol)
			}
		})
	}
}

func TestParseAddrs(t *testing.T) {
	tests := []struct{ name, in, want, err string }{
		{name: "both families", in: " 10.16.0.2 , fd00::2", want: "10.16.0.2,fd00::2"},
		{name: "IPv4 in IPv6 becomes IPv4", in: "::ffff:10.0.0.1", want: "10.0.0.1"},
		{name: "a zone is refused", in: "fe80::1%eth0", err: "has a zone"},
		{name: "a CIDR is no address", in: "10.0.0.0/8", err: "is not an IP address"},
		{name: "two of one family are refused", in: "fd00::1,fd00::2", err: "more than one value of family IPv6"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseAddrs(tt.in)
			checkError(t, err, tt.err)
			if Join(got) != tt.want {
				t.Errorf("got %q, want %q", Join(got), tt.want)
			}
		})
	}
}

func TestLastAddr(t *testing.T) {
	tests := []struct{ prefix, want string }{
		{"0.0.0.0/0", "255.255.255.255"},
		{"10.16.0.0/15", "10.17.255.255"},
		{"10.0.0.1/32", "10.0.0.1"},
		{"10.0.0.6/31", "10.0.0.7"},
		{"fd00::/63", "fd00::1:ffff:ffff:ffff:ffff"},
		{"fd00::1/128", "fd00::1"},
	}
	for _, tt := range tests {
		if got := LastAddr(netip.MustParsePrefix(tt.prefix)); got.String() != tt.want {
			t.Errorf("LastAddr(%s) = %s, want %s", tt.prefix, got, tt.want)
		}
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
	if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Fatalf("got error %v, want one with %q", err, want)
	}
}

func TestPrefixOf(t *testing.T) {
	mapped := net.ParseIP("192.0.2.1") // 16 bytes
	for name, c := range map[string]struct {
		network *net.IPNet
		want    string
	}{
		"nil":                          {nil, "invalid Prefix"},
		"IPv4":                         {&net.IPNet{IP: mapped.To4(), Mask: net.CIDRMask(24, 32)}, "192.0.2.1/24"},
		"IPv4 in 16 bytes":             {&net.IPNet{IP: mapped, Mask: net.CIDRMask(24, 32)}, "192.0.2.1/24"},
		"IPv6":                         {&net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)}, "2001:db8::1/64"},
		"all of IPv6":                  {&net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, "::/0"},
		"a mask of the other family":   {&net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(24, 32)}, "invalid Prefix"},
		"a mask that is no prefix":     {&net.IPNet{IP: mapped.To4(), Mask: net.IPv4Mask(255, 0, 255, 0)}, "invalid Prefix"},
		"a network without an address": {&net.IPNet{Mask: net.CIDRMask(24, 32)}, "invalid Prefix"},
	} {
		if got := PrefixOf(c.network).String(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
