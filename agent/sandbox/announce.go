// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
)

// announceKeys returns the kernel parameters with which the kernel announces the addresses of an interface (ip-sysctl): by gratuitous ARP and
// by unsolicited neighbour advertisements.
func announceKeys(name string) []string {
	return []string{"net/ipv4/conf/" + name + "/arp_notify", "net/ipv6/conf/" + name + "/ndisc_notify"}
}

// Announce sends a gratuitous ARP or an unsolicited neighbour advertisement for each address. A neighbour that knows an address from an earlier
// pod with another hardware address then uses the new one at once. Call it when the port passes packets.
func (i Interface) Announce() error {
	if err := i.inside(i.enableAnnouncements, i.confirmMAC); err != nil {
		return fmt.Errorf("announce %w", err)
	}
	return nil
}

func (i Interface) enableAnnouncements(netlinksafe.Handle, netlink.Link) error {
	for _, key := range announceKeys(i.Name) {
		if err := writeSysctl(key, "1"); err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			return err
		}
	}
	return nil
}

// confirmMAC sets the hardware address that the link has. The kernel announces the link's addresses at each such request, also when the
// hardware address stays the same.
func (i Interface) confirmMAC(kernel netlinksafe.Handle, link netlink.Link) error {
	if err := kernel.LinkSetHardwareAddr(link, i.MAC); err != nil {
		return fmt.Errorf("set hardware address: %w", err)
	}
	return nil
}
