// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"net/netip"
	"slices"
	"testing"
)

// FuzzParsePodRequest reads any addresses, MAC address and routes. Addresses that are accepted are addresses of ports: without a zone, and not
// IPv4 in IPv6. A MAC address has 48 bits. Each route has a destination or a gateway, of one family, and no bits after its prefix.
func FuzzParsePodRequest(f *testing.F) {
	f.Add("10.16.0.9,fd00::9", "02:00:00:00:00:01", `[{"dst":"10.0.0.0/8","gw":"10.16.0.2"}]`)
	f.Add("", "", `[{"dst":"::ffff:10.0.0.0/104"},{"dst":"::ffff:10.0.0.1","gw":"10.16.0.2"}]`)
	f.Fuzz(func(t *testing.T, addresses, mac, routes string) {
		request, err := ParsePodRequest(map[string]string{
			AnnotationIPAddress.Key(): addresses, AnnotationMACAddress.Key(): mac, AnnotationRoutes.Key(): routes,
		})
		if err != nil {
			return
		}
		checkRequest(t, request)
	})
}

func checkRequest(t *testing.T, request PodRequest) {
	t.Helper()
	for _, a := range slices.Concat(append(request.Choices, request.Addresses, request.NorthGateway, request.Vips)...) {
		if !isPlain(a) {
			t.Errorf("address %v", a)
		}
	}
	for _, list := range append(request.Choices, request.Addresses, request.NorthGateway) {
		if len(list) > 2 || len(list) == 2 && list[0].Is4() == list[1].Is4() {
			t.Errorf("more than one address of a family in %v", list)
		}
	}
	if n := len(request.MAC); n != 0 && n != 6 {
		t.Errorf("MAC address %v", request.MAC)
	}
	for _, r := range request.Routes {
		to, via := r.Destination, r.Gateway
		switch {
		case !to.IsValid() && !via.IsValid(), to.IsValid() && (!isPlain(to.Addr()) || to != to.Masked()), via.IsValid() && !isPlain(via),
			to.IsValid() && via.IsValid() && to.Addr().Is4() != via.Is4():
			t.Errorf("route %v", r)
		}
	}
}

func isPlain(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }
