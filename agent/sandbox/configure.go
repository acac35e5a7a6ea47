// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// checksumFeature is the kernel's name of transmit checksum offload of a veth.
const checksumFeature = "tx-checksum-ip-generic"

// minIPv6MTU is the smallest MTU at which the kernel enables IPv6 on a device (RFC 8200, section 5).
const minIPv6MTU = 1280

// Configure applies i to the container's end: hardware address, MTU, state up, exactly its addresses (and link-local ones), its routes.
func (i Interface) Configure() error {
	if err := i.inside(i.ignoreAdvertisements, i.keepNeighbours, i.setLink, i.setChecksums, i.enableIPv6, i.setAddresses, i.setRoutes); err != nil {
		return fmt.Errorf("configure %w", err)
	}
	return nil
}

// step is one operation on the container's end, through a socket of its namespace.
type step func(netlinksafe.Handle, netlink.Link) error

// inside runs steps on the container's end, in its namespace, until one fails.
func (i Interface) inside(steps ...step) error {
	namespace, err := open(i.NetNS)
	if err != nil {
		return fmt.Errorf("%s in %s: %w", i.Name, i.NetNS, err)
	}
	defer namespace.Close()
	return namespace.Do(func(ns.NetNS) error {
		if err := i.take(steps); err != nil {
			return fmt.Errorf("%s in %s: %w", i.Name, i.NetNS, err)
		}
		return nil
	})
}

func (i Interface) take(steps []step) error {
	kernel, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer kernel.Close()
	link, err := kernel.LinkByName(i.Name)
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	for _, step := range steps {
		if err := step(kernel, link); err != nil {
			return err
		}
	}
	return nil
}

// ignoreAdvertisements prevents other pods of the subnet from adding routes, addresses and an MTU to this one by router advertisements
// (RFC 4861, section 11.2). OVN's ACLs let advertisements of any port pass (ovn-northd(8), ls_in_acl_eval, priority 65532). The pod does
// not need them, since its annotations have all parameters. This step runs before the link is up.
func (i Interface) ignoreAdvertisements(netlinksafe.Handle, netlink.Link) error {
	err := writeSysctl("net/ipv6/conf/"+i.Name+"/accept_ra", "0")
	if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return nil
	}
	return err
}

// keepNeighbours sets NeighbourProbes, where the kernel has it.
func (i Interface) keepNeighbours(netlinksafe.Handle, netlink.Link) error {
	for _, key := range NeighbourProbeKeys(i.Name) {
		if err := writeSysctl(key, NeighbourProbes); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// enableIPv6 clears disable_ipv6, which new namespaces inherit on nodes that have IPv6 disabled.
func (i Interface) enableIPv6(netlinksafe.Handle, netlink.Link) error {
	if !i.hasIPv6() {
		return nil
	}
	if err := CheckFamilies(i.Addresses); err != nil {
		return err
	}
	for _, scope := range []string{"all", i.Name} {
		if err := setSysctl("net/ipv6/conf/"+scope+"/disable_ipv6", "0"); err != nil {
			return err
		}
	}
	return nil
}

func (i Interface) hasIPv6() bool {
	return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// CheckFamilies returns an error if the kernel does not support the family of one of the addresses. Without this check, each step would
// fail on such a kernel with a different error.
func CheckFamilies(addresses []netip.Prefix) error {
	i := slices.IndexFunc(addresses, func(p netip.Prefix) bool { return p.Addr().Is6() })
	if i < 0 {
		return nil
	}
	socket, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("the kernel of this node has no IPv6, which %s needs: start it without ipv6.disable=1", addresses[i].Addr())
	case err != nil:
		return fmt.Errorf("look whether the kernel has IPv6: %w", err)
	}
	return unix.Close(socket)
}

func (i Interface) setChecksums(netlinksafe.Handle, netlink.Link) error {
	if !i.ComputeChecksums {
		return nil
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer tool.Close()
	if err := tool.Change(i.Name, map[string]bool{checksumFeature: false}); err != nil {
		return fmt.Errorf("turn off checksum offload: %w", err)
	}
	return nil
}

func (i Interface) setLink(kernel netlinksafe.Handle, link netlink.Link) error {
	if !bytes.Equal(link.Attrs().HardwareAddr, i.MAC) {
		if err := kernel.LinkSetHardwareAddr(link, i.MAC); err != nil {
			return fmt.Errorf("set hardware address %s: %w", i.MAC, err)
		}
	}
	if err := i.setMTU(kernel, link); err != nil {
		return err
	}
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := kernel.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up: %w", err)
	}
	return nil
}

func (i Interface) setMTU(kernel netlinksafe.Handle, link netlink.Link) error {
	if i.MTU < minIPv6MTU && i.hasIPv6() {
		return fmt.Errorf("an MTU of %d is too small for IPv6, which needs %d", i.MTU, minIPv6MTU)
	}
	if link.Attrs().MTU == i.MTU {
		return nil
	}
	if err := kernel.LinkSetMTU(link, i.MTU); err != nil {
		return fmt.Errorf("set MTU %d: %w", i.MTU, err)
	}
	return nil
}

func (i Interface) setAddresses(kernel netlinksafe.Handle, link netlink.Link) error {
	have, err := addressesOf(kernel, link)
	if err != nil {
		return err
	}
	err = drop(kernel, link, have, func(p netip.Prefix) bool {
		return !p.Addr().IsLinkLocalUnicast() && !slices.Contains(i.Addresses, p)
	})
	if err != nil {
		return err
	}
	for _, p := range i.Addresses {
		if slices.ContainsFunc(have, func(a prefixed) bool { return a.prefix == p }) {
			continue
		}
		if err := addAddress(kernel, link, p); err != nil {
			return err
		}
	}
	return nil
}

func (i Interface) setRoutes(kernel netlinksafe.Handle, link netlink.Link) error {
	for _, r := range i.Routes {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: netipx.PrefixIPNet(r.To), Gw: r.Via.AsSlice()}
		if err := kernel.RouteReplace(route); err != nil {
			return fmt.Errorf("add route to %s via %s: %w", r.To, r.Via, err)
		}
	}
	return nil
}

func isGone(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) }
