// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
)

// external identifies one of the agent's routes in the table of an external gateway. It is the default route through the gateway, or an
// exception (RTN_THROW, rtnetlink(7)) that leaves traffic within the cluster to the next tables.
type external struct {
	table int
	to    netip.Prefix
}

// setExternal sets the agent's rules, and the routes of the tables that they use, to the given ones. Traffic to cluster prefixes is
// excepted. It is idempotent, and does not change rules and routes of others. It returns the indexes of the interfaces through which the
// gateways are reached.
func setExternal(want []External, cluster []netip.Prefix) (links []int, err error) {
	routes := map[external]netip.Addr{} // by route: the gateway; invalid for a throw
	for _, e := range want {
		routes[external{e.Table, ipfamily.Anywhere(e.Via)}] = e.Via
		for _, p := range cluster {
			if ipfamily.Of(p.Addr()) == ipfamily.Of(e.Via) {
				routes[external{e.Table, p}] = netip.Addr{}
			}
		}
	}
	have, err := externalRoutes()
	if err != nil {
		return nil, err
	}
	var failed []error
	for key, via := range routes {
		index, err := setExternalRoute(key, via, have)
		if err != nil {
			failed = append(failed, err)
		} else if index != 0 {
			links = append(links, index)
		}
		delete(have, key)
	}
	failed = append(failed, setRules(want))
	for key, r := range have { // after the rules that used it
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = append(failed, fmt.Errorf("delete route to %s of table %d: %w", key.to, key.table, err))
		}
	}
	return links, errors.Join(failed...)
}

func setExternalRoute(key external, via netip.Addr, have map[external]netlink.Route) (link int, err error) {
	want := &netlink.Route{Dst: netipx.PrefixIPNet(key.to), Table: key.table, Protocol: routeProtocol, Type: unix.RTN_THROW}
	if via.IsValid() {
		want.Type, want.Gw = unix.RTN_UNICAST, via.AsSlice()
	}
	write := netlink.RouteAdd // does not replace a route of another owner
	if current, exists := have[key]; exists {
		if current.Type == want.Type && current.Gw.Equal(want.Gw) {
			return interfaceOf(current), nil
		}
		write = netlink.RouteReplace
	}
	err = write(want)
	switch {
	case errors.Is(err, unix.EEXIST):
		return 0, fmt.Errorf("table %d has a route of someone else to %s: choose another policyRoutingTableID: %w", key.table, key.to, err)
	case err != nil && via.IsValid():
		return 0, fmt.Errorf("set the external gateway %s in table %d: %w (is it in a network of this node?)", via, key.table, err)
	case err != nil:
		return 0, fmt.Errorf("except %s from table %d: %w", key.to, key.table, err)
	case !via.IsValid():
		return 0, nil
	}
	made, err := netlink.RouteGet(via.AsSlice())
	if err != nil || len(made) == 0 {
		return 0, nil // the route was deleted again; an event or the next pass restores it
	}
	return made[0].LinkIndex, nil
}

// interfaceOf returns the index of the route's interface; 0 for a route without one.
func interfaceOf(r netlink.Route) int {
	if r.Type != unix.RTN_UNICAST {
		return 0
	}
	return r.LinkIndex
}

// externalRoutes returns the agent's routes in all tables except main and kernel.ClaimTable.
func externalRoutes() (map[external]netlink.Route, error) {
	filter := &netlink.Route{Protocol: routeProtocol, Table: unix.RT_TABLE_UNSPEC} // every table
	list, err := netlinksafe.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes of every table: %w", err)
	}
	out := map[external]netlink.Route{}
	for _, r := range list {
		if r.Table != unix.RT_TABLE_MAIN && r.Table != kernel.ClaimTable {
			out[external{r.Table, destination(r)}] = r
		}
	}
	return out, nil
}

// destination returns the destination of a route; netlink may omit it for a default route.
func destination(r netlink.Route) netip.Prefix {
	if r.Dst != nil {
		return ipfamily.PrefixOf(r.Dst)
	}
	if r.Family == netlink.FAMILY_V6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// policyRule has the fields in which the agent's rules differ.
type policyRule struct {
	from            netip.Prefix
	priority, table int
}

func setRules(want []External) error {
	list, err := Rules()
	if err != nil {
		return err
	}
	have := map[policyRule]netlink.Rule{}
	for _, r := range list {
		if r.Protocol == uint8(routeProtocol) {
			have[policyRule{ipfamily.PrefixOf(r.Src), r.Priority, r.Table}] = r
		}
	}
	var failed []error
	for _, e := range want {
		key := policyRule{e.From, e.Priority, e.Table}
		_, exists := have[key]
		delete(have, key)
		if exists {
			continue
		}
		r := netlink.NewRule()
		r.Src, r.Priority, r.Table, r.Protocol, r.Family = netipx.PrefixIPNet(e.From), e.Priority, e.Table, uint8(routeProtocol), netlink.FAMILY_V4
		if e.From.Addr().Is6() {
			r.Family = netlink.FAMILY_V6
		}
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			failed = append(failed, fmt.Errorf("add the rule for %s: %w", e.From, err))
		}
	}
	for key, r := range have {
		if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = append(failed, fmt.Errorf("delete the rule for %s: %w", key.from, err))
		}
	}
	return errors.Join(failed...)
}
