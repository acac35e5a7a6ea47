// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipfamily

import (
	"net"
	"net/netip"
	"testing"
)

// OVN has these MAC addresses, and a new version must derive the same ones.
func TestMACAddressesAreTheSameInEachVersion(t *testing.T) {
	for _, c := range []struct {
		address string
		attempt uint32
		want    string
	}{
		{"10.16.0.2", 0, "06:4b:0a:10:00:02"},
		{"10.16.0.2", 1, "0e:71:90:a7:bb:f8"},
		{"fd00:10:16::2", 0, "0e:8d:49:d8:3b:74"},
		{"fd00:10:16::2", 1, "0e:8d:49:d8:3d:27"},
	} {
		mac := MAC(netip.MustParseAddr(c.address), c.attempt)
		if got := net.HardwareAddr(mac[:]).String(); got != c.want {
			t.Errorf("attempt %d for %s derives %s, want %s", c.attempt, c.address, got, c.want)
		}
	}
}

func TestOnlyFirstMACAddressesOfIPv4AreReadBack(t *testing.T) {
	address := netip.MustParseAddr("203.0.113.254")
	if got, ok := OfMAC(MAC(address, 0)); !ok || got != address {
		t.Errorf("%s is read back as %s, %t", address, got, ok)
	}
	for name, mac := range map[string][6]byte{
		"a second candidate":    MAC(address, 1),
		"an IPv6 address's":     MAC(netip.MustParseAddr("2001:db8::1"), 0),
		"a user's":              {macIPv4, macIPv4Second + 1, 10, 16, 0, 2},
		"a user's of one octet": {macIPv4 + 1, macIPv4Second, 10, 16, 0, 2},
	} {
		if got, ok := OfMAC(mac); ok {
			t.Errorf("%s is read back as %s", name, got)
		}
	}
}
