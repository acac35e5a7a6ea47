// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ListenOnly brings an interface of the node up that only receives copies of packets: the node has no IPv6 on it and answers no ARP request, so that it
// sends nothing through it. It ignores an interface that does not exist yet. It is idempotent.
func ListenOnly(name string) error {
	link, err := netlinksafe.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return nil
	case err != nil:
		return fmt.Errorf("look for %s: %w", name, err)
	}
	if err := setSysctl("net/ipv6/conf/"+name+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return fmt.Errorf("keep IPv6 from %s: %w", name, err)
	}
	if link.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		if err := netlink.LinkSetARPOff(link); err != nil {
			return fmt.Errorf("disable ARP on %s: %w", name, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	return nil
}
