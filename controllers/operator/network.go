// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Default join networks.
const (
	defaultJoinIPv4 = "100.64.0.0/16"
	defaultJoinIPv6 = "fd00:100:64::/112"
)

// cidrList is one of the CIDR lists of the spec, with the name of its field.
type cidrList struct {
	field string
	cidrs []netip.Prefix
}

// resolveNetwork validates the networks and fills in the join CIDRs. Its errors name the field and the fix. It returns the lists that must not contain
// addresses of nodes.
func resolveNetwork(n v1alpha1.Network) (v1alpha1.Network, []cidrList, error) {
	pods, err := parseCIDRs("network.podCIDRs", n.PodCIDRs)
	if err != nil {
		return n, nil, err
	}
	if len(n.JoinCIDRs) == 0 {
		n.JoinCIDRs = nil
		for _, cidr := range pods.cidrs {
			n.JoinCIDRs = append(n.JoinCIDRs, defaultJoin(cidr))
		}
	}
	join, err := parseCIDRs("network.joinCIDRs", n.JoinCIDRs)
	if err != nil {
		return n, nil, err
	}
	services, err := parseCIDRs("network.serviceCIDRs", n.ServiceCIDRs)
	if err != nil {
		return n, nil, err
	}
	if err := checkFamilies(pods, join, services); err != nil {
		return n, nil, err
	}
	if err := errors.Join(checkGateways(n.PodGateways, pods.cidrs), checkRanges(n.ExcludeIPs)); err != nil {
		return n, nil, err
	}
	lists := []cidrList{pods, join, services}
	err = checkOverlaps(lists)
	if n.PodVlan != "" {
		lists = lists[1:] // nodes can be on the physical network of the pods
	}
	return n, lists, err
}

func defaultJoin(pods netip.Prefix) string {
	if pods.Addr().Is4() {
		return defaultJoinIPv4
	}
	return defaultJoinIPv6
}

func parseCIDRs(field string, given []string) (cidrList, error) {
	list := cidrList{field: field}
	for _, s := range given {
		cidr, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
			return list, fmt.Errorf("%s: %q is not a CIDR: write it like 10.16.0.0/16 or fd00:10:16::/112", field, s)
		case cidr.Addr().Is4In6():
			return list, fmt.Errorf("%s: %q is an IPv4 address in IPv6 form: write it as IPv4", field, s)
		case cidr != cidr.Masked():
			return list, fmt.Errorf("%s: %q has bits set beyond its length: write %s", field, s, cidr.Masked())
		case cidr.Bits() == 0 || cidr.Addr().BitLen()-cidr.Bits() < 2:
			return list, fmt.Errorf("%s: %q leaves no room for a gateway and pods: choose another length", field, s)
		case list.has(cidr.Addr()):
			return list, fmt.Errorf("%s: %q is the second CIDR of its family: give one per family", field, s)
		}
		list.cidrs = append(list.cidrs, cidr)
	}
	return list, nil
}

// has reports whether the list has a CIDR of this address's family.
func (l cidrList) has(family netip.Addr) bool {
	for _, cidr := range l.cidrs {
		if cidr.Addr().BitLen() == family.BitLen() {
			return true
		}
	}
	return false
}

func checkFamilies(pods, join, services cidrList) error {
	for _, cidr := range pods.cidrs {
		if !join.has(cidr.Addr()) {
			return fmt.Errorf("%s: no CIDR of the family of %s in %s: add one, or leave %s out", join.field, cidr, pods.field, join.field)
		}
	}
	if len(join.cidrs) > len(pods.cidrs) {
		return fmt.Errorf("%s has a family that %s has not: give both the same families", join.field, pods.field)
	}
	for _, cidr := range services.cidrs {
		if pods.has(cidr.Addr()) {
			return nil
		}
	}
	return fmt.Errorf("%s and %s have no family in common, so that no pod would reach a Service: "+
		"set %s to the API server's --service-cluster-ip-range", services.field, pods.field, services.field)
}

// checkGateways finds gateways that are the address of their network, or the broadcast address. The API compares no addresses, because an
// estimate of the cost of that has no bound.
func checkGateways(gateways []string, pods []netip.Prefix) error {
	for _, s := range gateways {
		gateway, err := netip.ParseAddr(s)
		if err != nil {
			return fmt.Errorf("network.podGateways: %q is not an address", s)
		}
		for _, cidr := range pods {
			last := gateway.Is4() && !cidr.Contains(gateway.Next())
			if cidr.Contains(gateway) && (gateway == cidr.Addr() || last) {
				return fmt.Errorf("network.podGateways: %s is the first or the last address of %s, which no port can have: choose another one", s, cidr)
			}
		}
	}
	return nil
}

// checkRanges finds what CEL cannot check: a range whose first address is after its last one.
func checkRanges(excluded []string) error {
	for _, e := range excluded {
		from, to, isRange := strings.Cut(e, "..")
		first, firstErr := netip.ParseAddr(from)
		last, lastErr := netip.ParseAddr(to)
		if isRange && (firstErr != nil || lastErr != nil || last.Less(first)) {
			return fmt.Errorf("network.excludeIPs: %q is not a range: write the lower address first, like 10.16.0.10..10.16.0.20", e)
		}
	}
	return nil
}

func checkOverlaps(lists []cidrList) error {
	for i, a := range lists {
		for _, b := range lists[i+1:] {
			for _, x := range a.cidrs {
				for _, y := range b.cidrs {
					if x.Overlaps(y) {
						return fmt.Errorf("%s %s overlaps %s %s: change one of them", a.field, x, b.field, y)
					}
				}
			}
		}
	}
	return nil
}
