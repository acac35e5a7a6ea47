// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"net/netip"

	"github.com/kiln-net/kiln/internal/ipfamily"
)

// matchFamily is the name of addr's protocol in matches: "ip4" or "ip6" (ovn-sb(5), Logical_Flow match).
func matchFamily(addr netip.Addr) string {
	if addr.Is4() {
		return "ip4"
	}
	return "ip6"
}

// matchIP is a match on one side, "src" or "dst", of packets of addr's family: an address, a prefix or a `$set`, none of which
// is ever a user's text.
func matchIP(side string, addr netip.Addr, value string) string {
	return matchFamily(addr) + "." + side + " == " + value
}

// gatewayMAC is the address of a router port, derived from its first network address so that it outlives the database: what
// ports have learnt of their gateway stays true. The allocator gives it to no port of the subnet.
func gatewayMAC(gateway netip.Addr) net.HardwareAddr {
	mac := ipfamily.MAC(gateway, 0)
	return mac[:]
}
