// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// portKey is what the port of a Service and the ports of its EndpointSlices have in common.
type portKey struct {
	name     string
	protocol corev1.Protocol
	family   discoveryv1.AddressType
}

// slicePort is a slice with the number that a port has in it.
type slicePort struct {
	slice  *discoveryv1.EndpointSlice
	number uint16
}

// slicesByPort holds the EndpointSlices of a Service by their ports: a Service may have thousands of both.
type slicesByPort map[portKey][]slicePort

// byPort orders slices by their ports. Of ports with one name and protocol in a slice the first one counts.
func byPort(of []*discoveryv1.EndpointSlice) slicesByPort {
	index := slicesByPort{}
	for _, s := range of {
		seen := map[portKey]bool{}
		for _, p := range s.Ports {
			key := portKey{deref(p.Name, ""), deref(p.Protocol, corev1.ProtocolTCP), s.AddressType}
			if p.Port == nil || seen[key] || len(s.Endpoints) == 0 {
				continue
			}
			seen[key] = true
			if *p.Port >= 1 && *p.Port <= math.MaxUint16 { // the API server accepts any number as a port of an EndpointSlice
				index[key] = append(index[key], slicePort{s, uint16(*p.Port)})
			}
		}
	}
	return index
}

// endpoints returns where one port of a Service is served in the family of the VIP: by the ready endpoints or, when there is
// none, by those that still serve while they terminate. The slices' ports hold the resolved target ports by the name of the Service's port.
func (x slicesByPort) endpoints(vip netip.Addr, portName string, protocol corev1.Protocol) []netip.AddrPort {
	var ready, draining []netip.AddrPort
	for _, p := range x[portKey{portName, protocol, addressType(vip)}] {
		for i := range p.slice.Endpoints {
			e := &p.slice.Endpoints[i]
			switch {
			case deref(e.Conditions.Ready, true):
				ready = appendAddresses(ready, e.Addresses, p.number)
			case deref(e.Conditions.Serving, false) && deref(e.Conditions.Terminating, false):
				draining = appendAddresses(draining, e.Addresses, p.number)
			}
		}
	}
	if len(ready) == 0 {
		return draining
	}
	return ready
}

func addressType(a netip.Addr) discoveryv1.AddressType {
	if a.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

func appendAddresses(out []netip.AddrPort, addresses []string, port uint16) []netip.AddrPort {
	for _, s := range addresses {
		if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, netip.AddrPortFrom(a, port))
		}
	}
	return out
}

// join writes endpoints in the form of Load_Balancer.vips, the same for the same set: an endpoint may be in two slices for a moment.
func join(endpoints []netip.AddrPort) string {
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	parts := make([]string, 0, len(endpoints))
	for _, e := range slices.Compact(endpoints) {
		parts = append(parts, e.String())
	}
	return strings.Join(parts, ",")
}

func deref[T any](p *T, unset T) T {
	if p == nil {
		return unset
	}
	return *p
}
