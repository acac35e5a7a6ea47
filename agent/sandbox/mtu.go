// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// MTU returns the MTU of the host's end of a veth, in bytes; 0 if there is no such link.
func MTU(hostName string) (int, error) {
	link, err := find(hostName)
	if link == nil {
		return 0, err
	}
	return link.Attrs().MTU, nil
}

// Resize sets the MTU of i on both ends of a running container's link. It sets the host's end last, so that its MTU shows whether Resize
// is complete.
func (i Interface) Resize() error {
	if err := i.inside(i.setMTU); err != nil {
		return fmt.Errorf("resize %w", err)
	}
	host, err := find(i.HostName)
	if host == nil {
		return err
	}
	if err := netlink.LinkSetMTU(host, i.MTU); err != nil {
		return fmt.Errorf("set MTU %d of %s: %w", i.MTU, i.HostName, err)
	}
	return nil
}
