// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

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
func stranded(list []Address, wide map[bool]bool, known []Address) (prefixes []netip.Prefix) {
	for _, a := range list {
		if a.Prefix.Addr().Is6() && a.stays(wide) && !contains(known, a) {
			prefixes = append(prefixes, a.Prefix)
		}
	}
	return prefixes
}

// Stranded returns the addresses of an interface that stay on it in a move, where the network does not reach them then.
func Stranded(link netlink.Link) ([]netip.Prefix, error) {
	list, err := Addresses(link)
	return stranded(list, wideFamilies(list), nil), err
}

// Stranded returns the addresses that the interface of a bridge has got since the move and that stay on it, where the network does not reach them.
func (d Directory) Stranded(bridge string) ([]netip.Prefix, error) {
	j, err := d.Read(bridge)
	if err != nil || j == nil {
		return nil, err
	}
	uplink, to, err := d.links(j)
	if err != nil {
		return nil, err
	}
	list, err := Addresses(uplink)
	if err != nil {
		return nil, err
	}
	others, err := Addresses(to)
	return stranded(list, wideFamilies(slices.Concat(list, j.Before.Addresses, others)), j.Before.Addresses), err
}
