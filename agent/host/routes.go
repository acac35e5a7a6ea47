// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// routeProtocol marks the agent's routes (rtnetlink(7), rtm_protocol). The agent changes no other routes.
const routeProtocol = netlink.RouteProtocol(75)

// connectedMetric is the metric of the agent's route to the join subnet (ip-route(8)). The kernel adds a route of its own with the address of
// ovn0, and prefers it because its metric is lower (0 for IPv4, 256 for IPv6). The kernel does not restore its route when somebody deletes it.
const connectedMetric = 1024

// setRoutes sets the agent's routes through link in the main table to the given ones. It is idempotent. Conflicting routes of other
// owners stay and are reported in taken, because the node cannot change the CIDR of a subnet. Changes are logged at verbosity 1.
func setRoutes(log logr.Logger, link netlink.Link, want []Route) (taken, err error) {
	have, err := ownRoutes()
	if err != nil {
		return nil, err
	}
	var others, failed []error
	for _, r := range want {
		current, exists := have[r.To]
		delete(have, r.To)
		if exists && current.LinkIndex == link.Attrs().Index && routeOf(current) == r {
			continue
		}
		write := netlink.RouteAdd // does not replace a route of another owner
		if exists {
			write = netlink.RouteReplace
		}
		switch err := write(r.kernel(link)); {
		case errors.Is(err, unix.EEXIST):
			others = append(others, fmt.Errorf("another owner's route to %s, which is a subnet's CIDR, prevents the agent's: delete the route or the subnet", r.To))
		case errors.Is(err, unix.EINVAL) && r.Source.IsValid():
			failed = append(failed, fmt.Errorf("set route to %s via %s: no interface has %s, an InternalIP of this node: %w", r.To, r.Via, r.Source, err))
		case err != nil:
			failed = append(failed, fmt.Errorf("set route to %s via %s: %w", r.To, r.Via, err))
		default:
			logRoute(log, "set a route", r)
		}
	}
	for to, r := range have {
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = append(failed, fmt.Errorf("delete route to %s: %w", to, err))
			continue
		}
		logRoute(log, "deleted a route", routeOf(r))
	}
	return errors.Join(others...), errors.Join(failed...)
}

func logRoute(log logr.Logger, message string, r Route) {
	if log = log.V(1); !log.Enabled() {
		return
	}
	values := []any{"to", r.To.String()}
	if r.Via.IsValid() {
		values = append(values, "via", r.Via.String())
	}
	if r.Source.IsValid() {
		values = append(values, "source", r.Source.String())
	}
	log.Info(message, values...)
}

func ownRoutes() (map[netip.Prefix]netlink.Route, error) {
	filter := &netlink.Route{Protocol: routeProtocol, Table: unix.RT_TABLE_MAIN}
	list, err := netlinksafe.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	out := make(map[netip.Prefix]netlink.Route, len(list))
	for _, r := range list {
		out[ipfamily.PrefixOf(r.Dst)] = r
	}
	return out, nil
}

func (r Route) kernel(link netlink.Link) *netlink.Route {
	out := &netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: netipx.PrefixIPNet(r.To), Gw: r.Via.AsSlice(), Protocol: routeProtocol, Table: unix.RT_TABLE_MAIN,
	}
	if !r.Via.IsValid() {
		out.Scope, out.Priority = netlink.SCOPE_LINK, connectedMetric
	}
	if r.Source.IsValid() {
		out.Src = r.Source.AsSlice()
	}
	return out
}

// routeOf is the inverse of kernel.
func routeOf(r netlink.Route) Route {
	out := Route{To: ipfamily.PrefixOf(r.Dst)}
	out.Via, _ = netipx.FromStdIP(r.Gw) // the zero Addr without one
	out.Source, _ = netipx.FromStdIP(r.Src)
	return out
}

// IsConnected reports whether a route of the main table leads to a directly connected network, whose hosts are reached without a gateway.
// Default routes and link-local networks do not count.
func IsConnected(r *netlink.Route) bool {
	if r.Table != unix.RT_TABLE_MAIN || r.Type != unix.RTN_UNICAST || r.Gw != nil || r.Via != nil || r.Dst == nil {
		return false
	}
	ones, _ := r.Dst.Mask.Size()
	return ones > 0 && !r.Dst.IP.IsLinkLocalUnicast() && len(r.MultiPath) == 0
}
