// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// familyName is the name of a family in matches (ovn-sb(5), Logical_Flow match).
func familyName(f ipfamily.Family) string {
	if f == ipfamily.IPv4 {
		return "ip4"
	}
	return "ip6"
}

// matchIP returns a match on one side, "src" or "dst", of packets of addr's family. value is an address, a prefix or a `$set`;
// it never contains text of a user.
func matchIP(side string, addr netip.Addr, value string) string {
	return familyName(ipfamily.Of(addr)) + "." + side + " == " + value
}

// gatewayMAC returns the MAC address of a router port. It is derived from the port's first network address, so it survives a
// loss of the database and the neighbour entries in pods stay valid. The allocator gives it to no port of the subnet.
func gatewayMAC(gateway netip.Addr) net.HardwareAddr {
	mac := ipfamily.MAC(gateway, 0)
	return mac[:]
}
