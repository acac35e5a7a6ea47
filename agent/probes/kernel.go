// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/agent/sandbox"
)

const (
	// tables is the first of 65536 routing tables, one per port ("kp" in ASCII and two bytes for the port). The table of a port has routes to
	// the pods with a probe of that port, so a probe of one pod does not divert packets to another pod.
	tables = 0x6b700000
	// protocol marks routes and rules of probes (rtnetlink(7), rtm_protocol).
	protocol = 76
	// priority of the rules: after the rule of the local table, before every rule of users.
	priority = 75
)

// route directs packets that the node itself sends to one port of an address to a pod's probe link.
type route struct {
	port    uint16
	address netip.Addr
	link    int
}

// destination is an address reached through a pod's probe link.
type destination struct {
	address netip.Addr
	link    int
}

// rule makes packets of the node itself to a TCP port look up the port's table. It does not match forwarded packets.
type rule struct {
	family int
	port   uint16
}

// difference holds the changes that give the kernel the wanted routes and rules.
type difference struct {
	addRoutes    []route
	addRules     []rule
	deleteRules  []netlink.Rule
	deleteRoutes []netlink.Route
}

func tableOf(port uint16) int { return tables | int(port) }

func isTable(table int) bool { return table&^0xffff == tables }

// compare returns the changes that turn the kernel's routes and rules of probes into the wanted ones.
func compare(want map[route]bool, routes []netlink.Route, rules []netlink.Rule) difference {
	var d difference
	haveRoutes, haveRules := map[route]bool{}, map[rule]bool{}
	for _, r := range routes {
		if have, ok := routeOf(r); ok && want[have] {
			haveRoutes[have] = true
		} else {
			d.deleteRoutes = append(d.deleteRoutes, r)
		}
	}
	wantRules := map[rule]bool{}
	for r := range want {
		wantRules[r.rule()] = true
		if !haveRoutes[r] {
			d.addRoutes = append(d.addRoutes, r)
		}
	}
	for _, r := range rules {
		if have, ok := ruleOf(r); ok && wantRules[have] {
			haveRules[have] = true
		} else {
			d.deleteRules = append(d.deleteRules, r)
		}
	}
	for r := range wantRules {
		if !haveRules[r] {
			d.addRules = append(d.addRules, r)
		}
	}
	return d
}

// apply makes the changes: additions first, so that a change interrupts no probe.
func (d difference) apply() error {
	var failed []error
	for _, r := range d.addRoutes {
		// The link of a pod that is being deleted cannot have routes.
		if err := netlink.RouteReplace(r.kernel()); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENETDOWN) {
			failed = append(failed, fmt.Errorf("add probe route to port %d of %s: %w", r.port, r.address, err))
		}
	}
	for _, r := range d.addRules {
		if err := netlink.RuleAdd(r.kernel()); err != nil && !errors.Is(err, unix.EEXIST) {
			failed = append(failed, fmt.Errorf("add probe rule of port %d: %w", r.port, err))
		}
	}
	for i := range d.deleteRules {
		if err := netlink.RuleDel(&d.deleteRules[i]); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = append(failed, fmt.Errorf("delete probe rule: %w", err))
		}
	}
	for i := range d.deleteRoutes {
		if err := netlink.RouteDel(&d.deleteRoutes[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = append(failed, fmt.Errorf("delete probe route to %s: %w", d.deleteRoutes[i].Dst, err))
		}
	}
	return errors.Join(failed...)
}

// kernel returns the route in netlink's form. If several pods have the same address, the one connected first receives the packets: the
// metric is the index of the link, and an older link has a lower index.
func (r route) kernel() *netlink.Route {
	return &netlink.Route{
		LinkIndex: r.link, Dst: &net.IPNet{IP: r.address.AsSlice(), Mask: net.CIDRMask(r.address.BitLen(), r.address.BitLen())},
		Src: sandbox.ProbeSource(r.address).AsSlice(), Scope: netlink.SCOPE_LINK, Table: tableOf(r.port), Protocol: protocol, Priority: r.link,
	}
}

// routeOf is the inverse of kernel. It returns false for a route that kernel does not return.
func routeOf(r netlink.Route) (route, bool) {
	if r.Dst == nil || r.Priority != r.LinkIndex {
		return route{}, false
	}
	address, ok := netip.AddrFromSlice(r.Dst.IP)
	return route{port: uint16(r.Table & 0xffff), address: address.Unmap(), link: r.LinkIndex}, ok
}

// connectedBy returns the destinations of routes of probes.
func connectedBy(routes []netlink.Route) map[destination]bool {
	found := map[destination]bool{}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if address, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			found[destination{address: address.Unmap(), link: r.LinkIndex}] = true
		}
	}
	return found
}

func (r route) rule() rule {
	if r.address.Is4() {
		return rule{family: netlink.FAMILY_V4, port: r.port}
	}
	return rule{family: netlink.FAMILY_V6, port: r.port}
}

func (r rule) kernel() *netlink.Rule {
	out := netlink.NewRule()
	out.Family, out.Priority, out.Table, out.Protocol = r.family, priority, tableOf(r.port), protocol
	out.IifName, out.IPProto, out.Dport = "lo", unix.IPPROTO_TCP, netlink.NewRulePortRange(r.port, r.port)
	return out
}

// ruleOf is the inverse of kernel. It returns false for a rule that kernel does not return.
func ruleOf(r netlink.Rule) (rule, bool) {
	if r.Dport == nil {
		return rule{}, false
	}
	out := rule{family: r.Family, port: r.Dport.Start}
	want := out.kernel()
	return out, *r.Dport == *want.Dport && r.Priority == want.Priority && r.Table == want.Table && r.IifName == want.IifName && r.IPProto == want.IPProto
}

// kernelState returns the routes and rules of probes that the kernel has.
func kernelState() (routes []netlink.Route, rules []netlink.Rule, err error) {
	filter := &netlink.Route{Protocol: protocol, Table: unix.RT_TABLE_UNSPEC}
	all, err := netlinksafe.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range all {
		if isTable(r.Table) {
			routes = append(routes, r)
		}
	}
	list, err := host.Rules()
	if err != nil {
		return nil, nil, err
	}
	for _, r := range list {
		if isTable(r.Table) {
			rules = append(rules, r)
		}
	}
	return routes, rules, nil
}

// Remove deletes all routes and rules of probes.
func Remove() error {
	routes, rules, err := kernelState()
	if err != nil {
		return err
	}
	return compare(nil, routes, rules).apply()
}
