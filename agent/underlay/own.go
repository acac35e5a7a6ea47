// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
)

// checkNode returns an error if the node has an address of a pod on the same network: probes leave the node, so its kernel does not answer them. link is the
// interface of the provider network.
func checkNode(link string, network v1.PodNetwork) error {
	list, err := netlinksafe.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the addresses of the node: %w", err)
	}
	names := []string{link, providerbridge.Bridge(network.ProviderNetwork), providerbridge.Tunnels}
	for _, have := range list {
		address, ok := netip.AddrFromSlice(have.IP)
		if !ok || !slices.Contains(network.Addresses, address.Unmap()) {
			continue
		}
		on, err := netlink.LinkByIndex(have.LinkIndex)
		if err != nil {
			return fmt.Errorf("find the interface with address %s: %w", address, err)
		}
		if !isOn(on, network.VLAN, names) {
			continue
		}
		return fmt.Errorf("AddressConflict: interface %s of the pod's node has address %s: add it to excludeIps of subnet %s, and create the pod again",
			on.Attrs().Name, address.Unmap(), network.LogicalSwitch)
	}
	return nil
}

// isOn reports whether an interface is one of the named ones, or on one of them, with the tag of a VLAN.
func isOn(link netlink.Link, tag int, names []string) bool {
	vlan, tagged := link.(*netlink.Vlan)
	switch {
	case slices.Contains(names, link.Attrs().Name):
		return tag == 0
	case tagged && vlan.VlanId != tag:
		return false
	case tagged:
		tag = 0
	case !slices.Contains([]string{"macvlan", "macvtap", "ipvlan"}, link.Type()):
		return false
	}
	parent, err := netlink.LinkByIndex(link.Attrs().ParentIndex)
	return err == nil && isOn(parent, tag, names) // an error: the parent is in another namespace
}

// checkVLAN returns an error if the node has an interface of the pod's VLAN on the interface of the bridge. In the kernel's datapath, it gets the packets of
// this VLAN, and the bridge does not.
func (n *Neighbours) checkVLAN(ctx context.Context, link string, network v1.PodNetwork) error {
	if network.VLAN == 0 {
		return nil
	}
	if userspace, err := n.Bridge.Userspace(ctx); err != nil || userspace {
		return err
	}
	list, err := os.ReadFile(vlanConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the node has no VLAN interfaces
	}
	if err != nil {
		return fmt.Errorf("list VLAN interfaces: %w", err)
	}
	if taker := vlanInterface(string(list), link, network.VLAN); taker != "" {
		return fmt.Errorf("VLANTaken: interface %s of the node takes the packets of VLAN %d: delete it, or change the interface of ProviderNetwork %s for this node, or the id of the Vlan",
			taker, network.VLAN, network.ProviderNetwork)
	}
	return nil
}

// vlanConfig lists the VLAN interfaces of the node.
const vlanConfig = "/proc/net/vlan/config"

// vlanInterface returns the name of the VLAN interface with an id on an interface, of a list in the format of vlanConfig; empty if there is none.
func vlanInterface(list, on string, id int) string {
	for line := range strings.Lines(list) {
		fields := strings.Fields(strings.ReplaceAll(line, "|", " "))
		if len(fields) == 3 && fields[1] == strconv.Itoa(id) && fields[2] == on {
			return fields[0]
		}
	}
	return ""
}
