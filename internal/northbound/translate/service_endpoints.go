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

// endpoints returns where one port of a Service is served in the family of the VIP: by the ready endpoints or, when there is
// none, by those that still serve while they terminate. The slices' ports hold the resolved target ports by the name of the Service's port.
func endpoints(slicesOf []*discoveryv1.EndpointSlice, vip netip.Addr, portName string, protocol corev1.Protocol) []netip.AddrPort {
	var ready, draining []netip.AddrPort
	for _, s := range slicesOf {
		if s.AddressType != addressType(vip) {
			continue
		}
		port, ok := slicePort(s, portName, protocol)
		if !ok {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			switch {
			case deref(e.Conditions.Ready, true):
				ready = appendAddresses(ready, e.Addresses, port)
			case deref(e.Conditions.Serving, false) && deref(e.Conditions.Terminating, false):
				draining = appendAddresses(draining, e.Addresses, port)
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

func slicePort(s *discoveryv1.EndpointSlice, name string, protocol corev1.Protocol) (uint16, bool) {
	for _, p := range s.Ports {
		if p.Port != nil && deref(p.Name, "") == name && deref(p.Protocol, corev1.ProtocolTCP) == protocol {
			// The API server accepts any number as a port of an EndpointSlice.
			return uint16(*p.Port), *p.Port >= 1 && *p.Port <= math.MaxUint16 //nolint:gosec // used within this range only
		}
	}
	return 0, false
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
