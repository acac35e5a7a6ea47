// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kiln-net/kiln/internal/endpoints"
)

// endpointsOf returns the endpoints of one port of a Service in the family of the VIP: the ready ones or, without any, the draining ones.
// The ports of EndpointSlices have the names of the Service's ports and the numbers of the target ports.
func endpointsOf(index endpoints.Index, vip netip.Addr, portName string, protocol corev1.Protocol) []netip.AddrPort {
	var ready, draining []netip.AddrPort
	for _, p := range index[endpoints.KeyOf(portName, protocol, addressType(vip))] {
		for i := range p.Slice.Endpoints {
			e := &p.Slice.Endpoints[i]
			a, err := netip.ParseAddr(endpoints.AddressOf(e))
			if err != nil {
				continue
			}
			switch endpoints.StateOf(e) {
			case endpoints.Ready:
				ready = append(ready, netip.AddrPortFrom(a, p.Number))
			case endpoints.Draining:
				draining = append(draining, netip.AddrPortFrom(a, p.Number))
			case endpoints.NotServing:
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

// join returns endpoints in the form of Load_Balancer.vips, sorted and without duplicates: an endpoint may be in two slices for
// a moment.
func join(endpoints []netip.AddrPort) string {
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	return text(slices.Compact(endpoints))
}

func text(endpoints []netip.AddrPort) string {
	parts := make([]string, 0, len(endpoints))
	for _, e := range endpoints {
		parts = append(parts, e.String())
	}
	return strings.Join(parts, ",")
}
