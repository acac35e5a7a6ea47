// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"crypto/sha256"
	"net"
	"net/netip"
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
// ports have learnt of their gateway stays true. The prefix is locally administered and none that ports of pods or nodes get.
func gatewayMAC(gateway netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256(gateway.AsSlice())
	return net.HardwareAddr{0x0e, 0x4b, sum[0], sum[1], sum[2], sum[3]}
}
