// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipfamily

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
)

// First octets of derived MAC addresses. Both are locally administered unicast (IEEE 802, bits 1 and 0 of the first octet are 1
// and 0). They differ, so that the first candidates of an IPv4 and an IPv6 address are never equal.
const (
	macIPv4 = 0x06
	macIPv6 = 0x0e
	// macIPv4Second is the second octet of MAC addresses derived from IPv4 addresses.
	macIPv4Second = 0x4b
)

// MAC derives a MAC address from an IP address. The result is deterministic, so that it survives restarts without being stored.
// IPv4 addresses yield distinct MAC addresses. IPv6 addresses yield 40 bits of a hash; attempt, from 0, selects the next
// candidate after a conflict.
func MAC(addr netip.Addr, attempt uint32) [6]byte {
	if addr.Is4() && attempt == 0 {
		ip := addr.As4()
		return [6]byte{macIPv4, macIPv4Second, ip[0], ip[1], ip[2], ip[3]}
	}
	ip := addr.As16()
	h := fnv.New64a()
	_, _ = h.Write(ip[:]) // never fails (hash.Hash)
	_, _ = h.Write(binary.BigEndian.AppendUint32(nil, attempt))
	var sum [8]byte
	binary.BigEndian.PutUint64(sum[:], h.Sum64())
	return [6]byte{macIPv6, sum[3], sum[4], sum[5], sum[6], sum[7]}
}

// OfMAC returns the IPv4 address from which MAC derived a MAC address; false if it has another form.
func OfMAC(mac [6]byte) (netip.Addr, bool) {
	if mac[0] != macIPv4 || mac[1] != macIPv4Second {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(mac[2:])), true
}
