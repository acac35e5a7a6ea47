// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addresses returns the global addresses of an interface, IPv4 first, in the kernel's order. Link-local and temporary addresses
// belong to the interface and are not moved.
func addresses(link netlink.Link) ([]netip.Prefix, error) {
	list, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	var global []netip.Prefix
	for _, a := range list {
		prefix := prefixOf(a.IPNet)
		temporary := prefix.Addr().Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0 // for IPv4, the same bit means secondary
		if prefix.IsValid() && !prefix.Addr().IsLinkLocalUnicast() && !temporary {
			global = append(global, prefix)
		}
	}
	slices.SortStableFunc(global, shortFirst)
	return global, nil
}

// routes returns the configured routes through an interface. It omits the kernel's own routes, which the kernel adds with
// addresses, and routes from router advertisements, which the bridge receives itself. Multipath routes are not moved.
func routes(link netlink.Link) ([]route, error) {
	filter := &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_UNSPEC}
	list, err := whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", link.Attrs().Name, err)
	}
	var made []route
	for _, r := range list {
		if isMade(r) && len(r.MultiPath) == 0 {
			made = append(made, routeOf(r))
		}
	}
	return made, nil
}

func routeOf(r netlink.Route) route {
	family := 4
	if r.Family == netlink.FAMILY_V6 {
		family = 6
	}
	made := route{
		Family: family, Priority: r.Priority, Table: r.Table, Scope: uint8(r.Scope), Protocol: int(r.Protocol),
		Flags: r.Flags & int(netlink.FLAG_ONLINK), MTU: r.MTU,
		Destination: prefixOf(r.Dst), Gateway: addressOf(r.Gw), Source: addressOf(r.Src),
	}
	if made.Destination.IsValid() && made.Destination.Bits() == 0 {
		made.Destination = netip.Prefix{}
	}
	return made
}

// on is the inverse of routeOf: it returns the route through the given link.
func (r route) on(link netlink.Link) *netlink.Route {
	family, everything := netlink.FAMILY_V4, netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if r.Family == 6 {
		family, everything = netlink.FAMILY_V6, netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	destination := r.Destination
	if !destination.IsValid() {
		destination = everything
	}
	made := &netlink.Route{
		LinkIndex: link.Attrs().Index, Family: family, Priority: r.Priority, Table: r.Table,
		Scope: netlink.Scope(r.Scope), Protocol: netlink.RouteProtocol(r.Protocol), Flags: r.Flags, MTU: r.MTU,
		Dst: ipNet(destination),
	}
	if r.Gateway.IsValid() {
		made.Gw = r.Gateway.AsSlice()
	}
	if r.Source.IsValid() {
		made.Src = r.Source.AsSlice()
	}
	return made
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addressOf(n.IP), bits)
}

func addressOf(ip net.IP) netip.Addr {
	address, _ := netip.AddrFromSlice(ip) // the result is invalid for nil, as intended
	return address.Unmap()
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// observe reads the addresses and routes of both interfaces.
func observe(uplink, bridge netlink.Link) (observed, error) {
	var seen observed
	var errs [4]error
	seen.uplinkAddresses, errs[0] = addresses(uplink)
	seen.uplinkRoutes, errs[1] = routes(uplink)
	if bridge != nil {
		seen.bridgeAddresses, errs[2] = addresses(bridge)
		seen.bridgeRoutes, errs[3] = routes(bridge)
	}
	return seen, errors.Join(errs[:]...)
}

// apply carries out the moves. Each step is idempotent: a previous attempt, or the kernel as a consequence of another step, may
// have done it already.
func apply(m moves, uplink, bridge netlink.Link) error {
	for _, link := range []netlink.Link{uplink, bridge} {
		if link.Attrs().Flags&net.FlagUp != 0 {
			continue
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", link.Attrs().Name, err)
		}
	}
	for _, a := range m.addAddresses {
		if err := addAddress(bridge, a); err != nil {
			return err
		}
	}
	for _, r := range m.addRoutes {
		if err := netlink.RouteReplace(r.on(bridge)); err != nil {
			return fmt.Errorf("add route %s to %s: %w", r, bridge.Attrs().Name, err)
		}
	}
	return errors.Join(removeRoutes(uplink, m.clearRoutes), removeAddresses(uplink, m.clearAddresses))
}

// addAddress skips duplicate address detection, because the address was in use on the uplink.
func addAddress(link netlink.Link, a netip.Prefix) error {
	address := &netlink.Addr{IPNet: ipNet(a)}
	if a.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrReplace(link, address); err != nil {
		return fmt.Errorf("add address %s to %s: %w", a, link.Attrs().Name, err)
	}
	return nil
}

func removeAddresses(link netlink.Link, list []netip.Prefix) error {
	for _, a := range list {
		err := netlink.AddrDel(link, &netlink.Addr{IPNet: ipNet(a)})
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s from %s: %w", a, link.Attrs().Name, err)
		}
	}
	return nil
}

func removeRoutes(link netlink.Link, list []route) error {
	for _, r := range list {
		err := netlink.RouteDel(r.on(link))
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route %s from %s: %w", r, link.Attrs().Name, err)
		}
	}
	return nil
}

// String formats the route like ip-route(8).
func (r route) String() string {
	words := []string{"default"}
	if r.Destination.IsValid() {
		words[0] = r.Destination.String()
	}
	if r.Gateway.IsValid() {
		words = append(words, "via", r.Gateway.String())
	}
	return strings.Join(words, " ")
}
