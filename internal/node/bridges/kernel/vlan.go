// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// VLANs returns the VLAN interfaces on an interface. The kernel gives them the packets of their VLANs before the packets of the interface go to its bridge, so they
// go on working when the interface becomes a port (vlan_do_receive in net/core/dev.c).
func VLANs(link netlink.Link) ([]*netlink.Vlan, error) {
	links, err := Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return vlansOn(links, link.Attrs().Index), nil
}

func vlansOn(links []netlink.Link, index int) (found []*netlink.Vlan) {
	for _, l := range links {
		if v, is := l.(*netlink.Vlan); is && v.ParentIndex == index {
			found = append(found, v)
		}
	}
	return found
}

// numbered returns the names of the VLAN interfaces that have addresses, on an interface or on its VLAN interfaces.
func numbered(link netlink.Link) (names []string, err error) {
	links, err := Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for on := vlansOn(links, link.Attrs().Index); len(on) > 0; on = on[1:] {
		v := on[0]
		list, err := addresses(v, false)
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			names = append(names, v.Name)
		}
		on = append(on, vlansOn(links, v.Index)...)
	}
	slices.Sort(names)
	return names, nil
}
