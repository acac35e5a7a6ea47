// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// ClaimTable is a routing table that no rule uses ("kiln" in ASCII). A route in it records that the agent added its destination, an egress address, to an
// interface: before Linux 5.18 (IFA_PROTO) the kernel does not record the origin of an address.
const ClaimTable = 0x6b696c6e

// claimed returns the IPv6 addresses that the agent has added to interfaces. It moves them itself (agent/host).
func claimed() (map[netip.Addr]bool, error) {
	list, err := Whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: ClaimTable}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list egress addresses: %w", err)
	}
	addresses := map[netip.Addr]bool{}
	for _, r := range list {
		if r.Dst != nil {
			if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
				addresses[a] = true
			}
		}
	}
	return addresses, nil
}

// wideFamilies returns the families, true for IPv4, of which a list has an address of more than one host. Link-local addresses do not count: each interface
// has one.
func wideFamilies(list []Address) map[bool]bool {
	wide := map[bool]bool{}
	for _, a := range list {
		if !a.Prefix.IsSingleIP() && !a.Prefix.Addr().IsLinkLocalUnicast() {
			wide[a.Prefix.Addr().Is4()] = true
		}
	}
	return wide
}

// stays reports whether an address stays on the interface in a move: one of a single host next to a wider one of its family. It can be a virtual address, such as
// keepalived's, and the program that added it will remove it from this interface. IPv6 addresses of DHCP servers, which end, move like others.
func (a Address) stays(wide map[bool]bool) bool {
	return a.Prefix.IsSingleIP() && wide[a.Prefix.Addr().Is4()] && (a.Prefix.Addr().Is4() || a.Valid == 0)
}

// stranded returns the IPv6 addresses of a list that stay. After a move, the network does not reach them: the kernel answers neighbour solicitations only on
// the interface that has the address, and they arrive at the bridge. For IPv4, it answers on every interface (arp_ignore 0).
func stranded(list []Address, wide map[bool]bool, known []Address) (prefixes []netip.Prefix, err error) {
	for _, a := range list {
		if a.Prefix.Addr().Is6() && a.stays(wide) && !contains(known, a) {
			prefixes = append(prefixes, a.Prefix)
		}
	}
	if len(prefixes) == 0 {
		return nil, nil
	}
	own, err := claimed()
	return slices.DeleteFunc(prefixes, func(p netip.Prefix) bool { return own[p.Addr()] }), err
}

// Stranded returns the addresses of an interface that stay on it in a move, where the network does not reach them then.
func Stranded(link netlink.Link) ([]netip.Prefix, error) {
	list, err := Addresses(link)
	if err != nil {
		return nil, err
	}
	return stranded(list, wideFamilies(list), nil)
}

// StrandedAfter returns the addresses that an interface has got since its move to a bridge and that stay on it, where the network does not reach them.
func StrandedAfter(uplink, bridge netlink.Link, before State) ([]netip.Prefix, error) {
	list, err := Addresses(uplink)
	if err != nil {
		return nil, err
	}
	others, err := Addresses(bridge)
	if err != nil {
		return nil, err
	}
	return stranded(list, wideFamilies(slices.Concat(list, before.Addresses, others)), before.Addresses)
}
