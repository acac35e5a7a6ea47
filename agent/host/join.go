// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// JoinInterface is the node's port on the subnet `join`: an internal port of the integration bridge.
const JoinInterface = "ovn0"

// setJoinInterface sets the hardware address, MTU and addresses of ovn0, removes other addresses except link-local ones, and brings it
// up. It is idempotent. If ovs-vswitchd has not created the device yet, it returns a Waiting.
func setJoinInterface(mac net.HardwareAddr, mtu int, addresses []netip.Prefix) (netlink.Link, error) {
	link, err := netlinksafe.LinkByName(JoinInterface)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return nil, Waiting("ovs-vswitchd to make the device " + JoinInterface)
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", JoinInterface, err)
	}
	attrs := link.Attrs()
	if !bytes.Equal(attrs.HardwareAddr, mac) {
		if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
			return nil, fmt.Errorf("set hardware address of %s: %w", JoinInterface, err)
		}
	}
	if attrs.MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("set MTU of %s to %d: %w", JoinInterface, mtu, err)
		}
	}
	if attrs.Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("bring up %s: %w", JoinInterface, err)
		}
	}
	if err := sandbox.CheckFamilies(addresses); err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", JoinInterface, err)
	}
	if slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		// New interfaces inherit disable_ipv6 on a node that disables IPv6 by default.
		if err := sysctl("net/ipv6/conf/"+JoinInterface+"/disable_ipv6", "0"); err != nil {
			return nil, err
		}
	}
	return link, setAddresses(link, addresses)
}

func setAddresses(link netlink.Link, want []netip.Prefix) error {
	list, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", JoinInterface, err)
	}
	have := map[netip.Prefix]bool{}
	for _, address := range list {
		p := ipfamily.PrefixOf(address.IPNet)
		have[p] = true
		if p.Addr().IsLinkLocalUnicast() || slices.Contains(want, p) {
			continue
		}
		if err := netlink.AddrDel(link, &address); err != nil {
			return fmt.Errorf("delete address %s of %s: %w", p, JoinInterface, err)
		}
	}
	for _, p := range want {
		if have[p] {
			continue
		}
		address := &netlink.Addr{IPNet: netipx.PrefixIPNet(p)}
		if p.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD // the allocator never assigns an address twice
		}
		if err := netlink.AddrAdd(link, address); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add address %s to %s: %w", p, JoinInterface, err)
		}
	}
	return nil
}
