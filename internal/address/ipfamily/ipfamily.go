// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipfamily provides dual-stack values on top of net/netip: lists with at most one element per family, address ranges,
// and their forms in the API ("10.16.0.0/16,fd00:10:16::/64", "10.16.0.10..10.16.0.20"). It does not depend on Kubernetes.
package ipfamily

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Family is an IP family.
type Family uint8

// The families.
const (
	IPv4 Family = iota
	IPv6
)

// String returns IPv4 or IPv6.
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// Bits returns the length of the family's addresses.
func (f Family) Bits() int {
	if f == IPv6 {
		return 128
	}
	return 32
}

// Of returns the family of a valid address. An IPv4-mapped IPv6 address counts as IPv6; the parsers of this package never return
// one.
func Of(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// Protocols that a list of CIDRs may have, as written in Subnet.spec.protocol.
const (
	ProtocolIPv4 = "IPv4"
	ProtocolIPv6 = "IPv6"
	ProtocolDual = "Dual"
)

// Protocol returns IPv4, IPv6 or Dual; empty if there are no CIDRs.
func Protocol(cidrs []netip.Prefix) string {
	var has [2]bool
	for _, cidr := range cidrs {
		has[Of(cidr.Addr())] = true
	}
	switch {
	case has[IPv4] && has[IPv6]:
		return ProtocolDual
	case has[IPv4]:
		return ProtocolIPv4
	case has[IPv6]:
		return ProtocolIPv6
	}
	return ""
}

// ParseAddr parses one address. It trims spaces, converts an IPv4-mapped IPv6 address to IPv4, and refuses a zone.
func ParseAddr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(strings.TrimSpace(s))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	if addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q has a zone", s)
	}
	return addr.Unmap(), nil
}

// ParseCIDR parses one CIDR. Bits after the prefix are cleared.
func ParseCIDR(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(strings.TrimSpace(s))
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", s)
	}
	if prefix.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is IPv4 in IPv6: write the IPv4 CIDR", s)
	}
	return prefix.Masked(), nil
}

// ParseCIDRs parses a comma list of CIDRs, at most one per family, in the order written. The empty string is no CIDRs.
func ParseCIDRs(s string) ([]netip.Prefix, error) {
	return parseOnePerFamily(s, ParseCIDR, netip.Prefix.Addr)
}

// ParseAddrs parses a comma list of addresses, at most one per family, in the order written. The empty string is no addresses.
func ParseAddrs(s string) ([]netip.Addr, error) {
	return parseOnePerFamily(s, ParseAddr, func(addr netip.Addr) netip.Addr { return addr })
}

// ValidAddrs returns the addresses among texts, such as those of a status. It skips other texts.
func ValidAddrs(texts ...string) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range texts {
		if addr, err := ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// Anywhere returns the default prefix, of length 0, of an address's family.
func Anywhere(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// Hosts returns the prefix of each address alone.
func Hosts(addrs []netip.Addr) []netip.Prefix {
	prefixes := make([]netip.Prefix, 0, len(addrs))
	for _, addr := range addrs {
		prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return prefixes
}

// PrefixOf converts a network of package net, with its host bits; the result is invalid for nil, for which netlink stands in some default routes, and for
// masks that are not prefixes.
func PrefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	address, _ := netip.AddrFromSlice(n.IP)
	address = address.Unmap()
	bits, size := n.Mask.Size()
	if size != address.BitLen() {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(address, bits)
}

// Join is the inverse of ParseCIDRs and ParseAddrs.
func Join[T fmt.Stringer](values []T) string {
	parts := make([]string, len(values))
	for i, value := range values {
		parts[i] = value.String()
	}
	return strings.Join(parts, ",")
}

func parseOnePerFamily[T fmt.Stringer](s string, parse func(string) (T, error), addr func(T) netip.Addr) ([]T, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var seen [2]bool
	var out []T
	for part := range strings.SplitSeq(s, ",") {
		value, err := parse(part)
		if err != nil {
			return nil, err
		}
		family := Of(addr(value))
		if seen[family] {
			return nil, fmt.Errorf("%q has more than one value of family %s", s, family)
		}
		seen[family] = true
		out = append(out, value)
	}
	return out, nil
}
