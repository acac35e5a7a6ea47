// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/uplink"
)

// checkDatapath detects at the start a configuration that would otherwise fail later with a less clear error.
func checkDatapath(o Options) error {
	if o.Datapath == v1alpha1.DatapathKernel {
		// The query for the family makes the kernel load the module, if it is installed.
		if _, err := netlink.GenlFamilyGet("ovs_datapath"); err != nil {
			return noKernelDatapath(o.Node, err)
		}
		return nil
	}
	if o.TunnelInterface == "" {
		return errors.New("with spec.nodes.datapath Userspace, spec.nodes.tunnelInterface of the OVNCluster must name an interface: " +
			"it becomes a port of br-phy, so it must not be the one that reaches the API server")
	}
	return nil
}

func noKernelDatapath(node string, err error) error {
	return fmt.Errorf("the kernel of node %s has no Open vSwitch datapath (%w): load the module openvswitch, "+
		"or set spec.nodes.datapath of the OVNCluster to Userspace", node, err)
}

// tunnelInterface returns the tunnel interface: the configured one, otherwise the one that has the node's address.
func tunnelInterface(o Options) (netlink.Link, error) {
	if o.TunnelInterface != "" {
		link, err := uplink.Link(o.TunnelInterface)
		if link != nil || err != nil {
			return link, err
		}
	}
	links, err := uplink.Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	if o.TunnelInterface == "" {
		return linkOfAddress(links, o)
	}
	names := make([]string, 0, len(links))
	for _, link := range links {
		names = append(names, link.Attrs().Name)
	}
	return nil, fmt.Errorf("interface %s is not on node %s; its interfaces are %s: change spec.nodes.tunnelInterface of the OVNCluster",
		o.TunnelInterface, o.Node, strings.Join(names, ", "))
}

func linkOfAddress(links []netlink.Link, o Options) (netlink.Link, error) {
	wanted, err := netip.ParseAddr(o.NodeAddress)
	if err != nil {
		return nil, fmt.Errorf("the address of node %s: %w", o.Node, err)
	}
	for _, link := range links {
		list, err := uplink.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
		}
		for _, a := range list {
			if uplink.AddrOf(a.IP) == wanted {
				return link, nil
			}
		}
	}
	return nil, fmt.Errorf("no interface of node %s has its address %s: set spec.nodes.tunnelInterface of the OVNCluster", o.Node, wanted)
}

// encapsulationAddress returns the local tunnel endpoint in the kernel datapath, to which other nodes send tunnel packets.
func encapsulationAddress(o Options, link netlink.Link) (netip.Addr, error) {
	if o.TunnelInterface == "" {
		return netip.ParseAddr(o.NodeAddress)
	}
	list, err := uplink.Addresses(link)
	if err != nil {
		return netip.Addr{}, err
	}
	if len(list) == 0 {
		return netip.Addr{}, noAddress(o, link)
	}
	return list[0].Prefix.Addr(), nil
}

// changedAddress returns the tunnel endpoint on the interface that had the node's address when the process started: its first address of
// that family. The kubelet passes a new address of the node only to the next container.
func changedAddress(o Options, link netlink.Link) (netip.Addr, error) {
	former, err := netip.ParseAddr(o.NodeAddress)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the address of node %s: %w", o.Node, err)
	}
	list, err := uplink.Addresses(link)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range list {
		if a.Prefix.Addr().Is4() == former.Is4() {
			return a.Prefix.Addr(), nil
		}
	}
	return netip.Addr{}, noAddress(o, link)
}

func noAddress(o Options, link netlink.Link) error {
	return fmt.Errorf("interface %s of node %s has no address: give it one, or change spec.nodes.tunnelInterface of the OVNCluster",
		link.Attrs().Name, o.Node)
}
