// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Verify compares the namespace with i and returns the first difference as an error. It ignores the zero fields of i.
func (i Interface) Verify() error {
	intact, err := i.Intact()
	if err != nil {
		return err
	}
	if !intact {
		return fmt.Errorf("%s in %s and %s on the host are no pair", i.Name, i.NetNS, i.HostName)
	}
	return i.inside(i.verifyLink, i.verifyAddresses, i.verifyRoutes)
}

func (i Interface) verifyLink(_ netlinksafe.Handle, link netlink.Link) error {
	attrs := link.Attrs()
	switch {
	case len(i.MAC) > 0 && !bytes.Equal(attrs.HardwareAddr, i.MAC):
		return fmt.Errorf("the hardware address is %s, not %s", attrs.HardwareAddr, i.MAC)
	case i.MTU != 0 && attrs.MTU != i.MTU:
		return fmt.Errorf("the MTU is %d, not %d", attrs.MTU, i.MTU)
	}
	return nil
}

func (i Interface) verifyAddresses(kernel netlinksafe.Handle, link netlink.Link) error {
	have, err := addressesOf(kernel, link)
	if err != nil {
		return err
	}
	for _, want := range i.Addresses {
		if !slices.ContainsFunc(have, func(a prefixed) bool { return a.prefix == want }) {
			return fmt.Errorf("address %s is missing", want)
		}
	}
	return nil
}

func (i Interface) verifyRoutes(kernel netlinksafe.Handle, link netlink.Link) error {
	list, err := kernel.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	var have []Route
	for _, route := range list {
		to := ipfamily.PrefixOf(route.Dst)
		via, hasGateway := netip.AddrFromSlice(route.Gw)
		if to.IsValid() && hasGateway {
			have = append(have, Route{To: to, Via: via.Unmap()})
		}
	}
	for _, want := range i.Routes {
		if !slices.Contains(have, want) {
			return fmt.Errorf("route to %s via %s is missing", want.To, want.Via)
		}
	}
	return nil
}
