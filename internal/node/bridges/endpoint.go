// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
)

// Address returns the tunnel endpoint's address. In the userspace datapath it takes the next step of the move of the tunnel interface; the error is ErrNoBridgeYet until the
// bridge is complete.
func (t *Tunnels) Address(ctx context.Context, db *client.Client) (netip.Addr, error) {
	if !t.options.kernel() {
		return t.reconcile(ctx, db)
	}
	if t.options.TunnelInterface != "" {
		return t.namedAddress()
	}
	link, err := tunnelInterface(t.options)
	if err == nil {
		t.last = link.Attrs().Name
		return encapsulationAddress(t.options, link)
	}
	former, formerErr := kernel.Link(t.last)
	if former == nil {
		return netip.Addr{}, errors.Join(err, formerErr)
	}
	return changedAddress(t.options, former)
}

// namedAddress returns the address of the tunnel interface that the OVNCluster names, wherever a move has it.
func (t *Tunnels) namedAddress() (netip.Addr, error) {
	holders, o := t.holders(t.options.TunnelInterface), t.options
	var errs []error
	for _, name := range append(holders, holders[0]) { // the address can have moved to the first one
		o.TunnelInterface = name
		link, err := tunnelInterface(o)
		if err == nil {
			t.last = link.Attrs().Name
			var address netip.Addr
			if address, err = encapsulationAddress(o, link); err == nil {
				return address, nil
			}
		}
		errs = append(errs, err)
	}
	return netip.Addr{}, errs[0]
}

// holders returns the interfaces that can have the addresses of an interface, the most probable one first. While it moves to the bridge of a provider
// network, or returns, either of them has some.
func (t *Tunnels) holders(name string) []string {
	bridges, err := t.directory.List()
	if err != nil {
		return []string{name}
	}
	for _, bridge := range bridges {
		j, err := t.directory.Read(bridge)
		switch {
		case err != nil || j == nil || j.Uplink != name || j.Done || len(j.Before.Addresses) == 0:
		case j.Phase == journal.PhaseReturned:
			return []string{name, bridge}
		default:
			return []string{bridge, name}
		}
	}
	return []string{name}
}

// tunnelInterface returns the tunnel interface: the configured one, otherwise the one that has the node's address.
func tunnelInterface(o Options) (netlink.Link, error) {
	if o.TunnelInterface != "" {
		link, err := kernel.Link(o.TunnelInterface)
		if link != nil || err != nil {
			return link, err
		}
	}
	links, err := kernel.Whole(netlink.LinkList)
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
		list, err := kernel.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
		}
		for _, a := range list {
			if kernel.AddrOf(a.IP) == wanted {
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
	list, err := kernel.Addresses(link)
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
	list, err := kernel.Addresses(link)
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
