// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Renumber changes the prefix lengths of a running container's addresses to the lengths in i.Addresses. Routes through the old gateway of a
// pair in moved change to its new gateway. No connection breaks, because the container has its addresses at every moment. Other addresses
// and routes, which the container may have added itself, stay.
func (i Interface) Renumber(moved map[netip.Addr]netip.Addr) error {
	move := func(kernel netlinksafe.Handle, link netlink.Link) error { return moveRoutes(kernel, link, moved) }
	if err := i.inside(i.lengthen, move, i.dropFormer); err != nil {
		return fmt.Errorf("renumber %w", err)
	}
	return nil
}

// lengthen adds the addresses with their new prefix lengths. A device can have one IPv4 address with two lengths, but not one IPv6
// address. An IPv6 address is therefore on lo while it is replaced on the device.
func (i Interface) lengthen(kernel netlinksafe.Handle, link netlink.Link) error {
	have, err := addressesOf(kernel, link)
	if err != nil {
		return err
	}
	for _, p := range i.Addresses {
		switch {
		case slices.ContainsFunc(have, func(a prefixed) bool { return a.prefix == p }):
		case p.Addr().Is4():
			err = addAddress(kernel, link, p)
		default:
			err = lengthenByLo(kernel, link, have, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func lengthenByLo(kernel netlinksafe.Handle, link netlink.Link, have []prefixed, p netip.Prefix) error {
	lo, err := kernel.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := kernel.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	if err := addInForce(kernel, lo, netip.PrefixFrom(p.Addr(), p.Addr().BitLen())); err != nil {
		return err
	}
	if err := drop(kernel, link, have, func(former netip.Prefix) bool { return former.Addr() == p.Addr() }); err != nil {
		return err
	}
	return addInForce(kernel, link, p)
}

// patience bounds the wait for the kernel's message. The wait reaches this bound only if a device is down or messages were lost.
const patience = time.Second

// addInForce adds an IPv6 address and waits until the kernel has added its local route: only then does the kernel accept packets to the
// address.
func addInForce(kernel netlinksafe.Handle, link netlink.Link, p netip.Prefix) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("listen to the kernel: %w", err)
	}
	defer socket.Close()
	if err := socket.SetReceiveTimeout(&unix.Timeval{Sec: int64(patience / time.Second)}); err != nil {
		return fmt.Errorf("listen to the kernel: %w", err)
	}
	if err := addAddress(kernel, link, p); err != nil {
		return err
	}
	local := &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Dst: netipx.PrefixIPNet(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))}
	for {
		routes, err := kernel.RouteListFiltered(netlink.FAMILY_V6, local, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		switch {
		case err != nil:
			return fmt.Errorf("list routes: %w", err)
		case len(routes) > 0:
			return nil
		}
		if _, _, err := socket.Receive(); err != nil {
			return fmt.Errorf("wait for address %s of %s: %w", p, link.Attrs().Name, err)
		}
	}
}

// dropFormer deletes the addresses that have a previous prefix length from the device, and all of them from lo.
func (i Interface) dropFormer(kernel netlinksafe.Handle, link netlink.Link) error {
	lo, err := kernel.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	for _, device := range []netlink.Link{link, lo} {
		have, err := addressesOf(kernel, device)
		if err != nil {
			return err
		}
		err = drop(kernel, device, have, func(p netip.Prefix) bool {
			ours := slices.ContainsFunc(i.Addresses, func(a netip.Prefix) bool { return a.Addr() == p.Addr() })
			return ours && (device == lo || !slices.Contains(i.Addresses, p))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func moveRoutes(kernel netlinksafe.Handle, link netlink.Link, moved map[netip.Addr]netip.Addr) error {
	if len(moved) == 0 {
		return nil
	}
	routes, err := kernel.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		before, _ := netip.AddrFromSlice(route.Gw)
		after, ok := moved[before.Unmap()]
		if !ok {
			continue
		}
		route.Gw, route.Flags = after.AsSlice(), 0
		if err := kernel.RouteReplace(&route); err != nil {
			return fmt.Errorf("move route to %s from %s to %s: %w", route.Dst, before, after, err)
		}
	}
	return nil
}

// prefixed is an address of a device in netlink's form and as a prefix.
type prefixed struct {
	netlink.Addr
	prefix netip.Prefix
}

func addressesOf(kernel netlinksafe.Handle, link netlink.Link) ([]prefixed, error) {
	list, err := kernel.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []prefixed
	for _, address := range list {
		if p := ipfamily.PrefixOf(address.IPNet); p.IsValid() {
			out = append(out, prefixed{address, p})
		}
	}
	return out, nil
}

// addAddress skips duplicate address detection: the allocator never assigns an address twice, and detection would delay the pod by a
// second.
func addAddress(kernel netlinksafe.Handle, link netlink.Link, p netip.Prefix) error {
	address := &netlink.Addr{IPNet: netipx.PrefixIPNet(p)}
	if p.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := kernel.AddrAdd(link, address); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to %s: %w", p, link.Attrs().Name, err)
	}
	return nil
}

func drop(kernel netlinksafe.Handle, link netlink.Link, have []prefixed, which func(netip.Prefix) bool) error {
	for _, a := range have {
		if !which(a.prefix) {
			continue
		}
		if err := kernel.AddrDel(link, &a.Addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("delete address %s of %s: %w", a.prefix, link.Attrs().Name, err)
		}
	}
	return nil
}
