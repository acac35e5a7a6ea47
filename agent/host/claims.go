// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
)

// setClaims makes the node answer ARP and neighbour requests for addresses. It adds each address to the interface whose network contains
// it, unless the node has the address already. An address in no network of the node must be routed to the node by other means. Stale
// addresses of earlier calls are removed; addresses added by others stay. It is idempotent, and returns the indexes of the interfaces
// that have the addresses.
func setClaims(want []netip.Addr) (links []int, err error) {
	noted, err := notes(unix.RTN_BLACKHOLE)
	if err != nil || len(want) == 0 && len(noted) == 0 {
		return nil, err
	}
	list, err := netlinksafe.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var failed []error
	for address, note := range noted {
		if !slices.Contains(want, address) {
			failed = append(failed, release(address, note, list))
		}
	}
	for _, address := range want {
		_, ours := noted[address]
		link, err := claim(address, ours, list)
		if err != nil {
			failed = append(failed, fmt.Errorf("answer for egress address %s: %w", address, err))
		} else if link != 0 {
			links = append(links, link)
		}
	}
	return links, errors.Join(failed...)
}

// notes returns the recorded addresses, each with the route of a type that records it: RTN_BLACKHOLE for addresses of the node, RTN_UNREACHABLE for addresses that it forwards.
func notes(kind int) (map[netip.Addr]netlink.Route, error) {
	filter := &netlink.Route{Protocol: routeProtocol, Table: kernel.ClaimTable}
	list, err := netlinksafe.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list egress addresses: %w", err)
	}
	out := map[netip.Addr]netlink.Route{}
	for _, r := range list {
		if r.Dst != nil && r.Type == kind {
			out[ipfamily.PrefixOf(r.Dst).Addr()] = r
		}
	}
	return out, nil
}

// claim adds an address to the interface whose network contains it, and returns the index of the interface that has it; 0 for none. It moves one that it
// added before if the network is on another interface now, such as the bridge of a provider network.
func claim(address netip.Addr, ours bool, list []netlink.Addr) (link int, err error) {
	var networks []int
	var have *netlink.Addr
	own := false // the node has the address itself
	for i, a := range list {
		switch p := ipfamily.PrefixOf(a.IPNet); {
		case p.Addr() == address && ours && isClaim(a):
			have = &list[i]
		case p.Addr() == address:
			own = true
		case p.Contains(address) && !p.IsSingleIP():
			networks = append(networks, a.LinkIndex)
		}
	}
	if own && have == nil {
		return 0, nil
	}
	if have != nil && (len(networks) == 0 || slices.Contains(networks, have.LinkIndex)) {
		return have.LinkIndex, acceptAt(address, have.LinkIndex) // an earlier pass may have failed after it added the address
	}
	if len(networks) == 0 {
		return 0, nil
	}
	network := networks[0]
	device, err := netlink.LinkByIndex(network)
	if err != nil {
		return 0, fmt.Errorf("find the interface: %w", err)
	}
	if device.Attrs().Name == JoinInterface {
		return 0, nil
	}
	if have != nil {
		if err := remove(have); err != nil {
			return 0, err
		}
	}
	host := netipx.PrefixIPNet(netip.PrefixFrom(address, address.BitLen()))
	note := &netlink.Route{Dst: host, Table: kernel.ClaimTable, Protocol: routeProtocol, Type: unix.RTN_BLACKHOLE}
	if err := netlink.RouteReplace(note); err != nil { // before the address: an address without a record would never be removed
		return 0, fmt.Errorf("note it: %w", err)
	}
	// The address is deprecated (preferred lifetime 0), so that the node does not use it as a source of its own connections; isClaim knows it by that, too.
	err = netlink.AddrAdd(device, &netlink.Addr{IPNet: host, ValidLft: math.MaxUint32, PreferedLft: 0})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, fmt.Errorf("put it on %s: %w", device.Attrs().Name, err)
	}
	return network, acceptAt(address, network)
}

// isClaim reports whether an address is like those that claim adds. The node itself can have the same address, on another interface or with another prefix.
func isClaim(a netlink.Addr) bool {
	return ipfamily.PrefixOf(a.IPNet).IsSingleIP() && a.Flags&unix.IFA_F_DEPRECATED != 0
}

// acceptAt makes an interface accept packets to an address from any source.
func acceptAt(address netip.Addr, link int) error {
	if !address.Is4() {
		return nil // only IPv4 has rp_filter
	}
	device, err := netlink.LinkByIndex(link)
	if err != nil {
		return fmt.Errorf("find the interface: %w", err)
	}
	return looseReversePath(device.Attrs().Name)
}

func release(address netip.Addr, note netlink.Route, list []netlink.Addr) error {
	for i := range list {
		if ipfamily.PrefixOf(list[i].IPNet).Addr() != address || !isClaim(list[i]) {
			continue
		}
		if err := remove(&list[i]); err != nil {
			return err
		}
	}
	if err := netlink.RouteDel(&note); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("forget egress address %s: %w", address, err)
	}
	return nil
}

func remove(address *netlink.Addr) error {
	device, err := netlink.LinkByIndex(address.LinkIndex)
	if err == nil {
		err = netlink.AddrDel(device, address)
	}
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("take back egress address %s: %w", address.IP, err)
	}
	return nil
}
