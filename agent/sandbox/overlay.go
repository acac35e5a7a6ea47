// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// overlayProtocol marks the routes that RouteOverlay manages (rtnetlink(7), rtm_protocol).
const overlayProtocol = netlink.RouteProtocol(75)

// RouteOverlay makes the routes with overlayProtocol of a running container equal to the given ones. Other routes stay, and have precedence for
// the same destination.
func (i Interface) RouteOverlay(want []Route) error {
	err := i.inside(func(kernel netlinksafe.Handle, link netlink.Link) error {
		filter := &netlink.Route{LinkIndex: link.Attrs().Index, Protocol: overlayProtocol}
		list, err := kernel.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		var have []Route
		for _, route := range list {
			via, _ := netipx.FromStdIP(route.Gw)
			r := Route{To: ipfamily.PrefixOf(route.Dst), Via: via}
			if slices.Contains(want, r) {
				have = append(have, r)
				continue
			}
			if err := kernel.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("delete route to %s via %s: %w", r.To, r.Via, err)
			}
		}
		for _, r := range want {
			if slices.Contains(have, r) {
				continue
			}
			route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: netipx.PrefixIPNet(r.To), Gw: r.Via.AsSlice(), Protocol: overlayProtocol}
			if err := kernel.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add route to %s via %s: %w", r.To, r.Via, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("set routes to the overlay: %w", err)
	}
	return nil
}
