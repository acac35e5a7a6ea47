// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"net/netip"
	"testing"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
)

func TestCandidatesAreOnTheInterface(t *testing.T) {
	address := netip.MustParseAddr
	s := kernel.State{
		Addresses: kernel.Plain([]netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}),
		Routes: []kernel.Route{
			{Family: 4, Gateway: address("192.0.2.254")}, {Family: 4, Destination: netip.MustParsePrefix("10.0.0.0/8"), Gateway: address("192.0.2.254")},
			{Family: 4, Destination: netip.MustParsePrefix("198.51.100.0/24")},
		},
	}
	for _, n := range []string{"192.0.2.30", "192.0.2.31", "192.0.2.32", "203.0.113.9"} {
		s.Neighbours = append(s.Neighbours, kernel.Neighbour{Address: address(n)})
	}
	nodes := []netip.Addr{address("192.0.2.1"), address("192.0.2.2"), address("203.0.113.2"), address("2001:db8::2")}
	got := Names(Candidates(s, nodes, netip.MustParseAddrPort("10.96.0.1:443")))
	if want := "the gateway 192.0.2.254, the node 192.0.2.2, the node 2001:db8::2, the API server at 10.96.0.1:443"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got := Names(Candidates(kernel.State{Addresses: s.Addresses, Neighbours: s.Neighbours}, nil, netip.AddrPort{})); got != "the node 192.0.2.30, the node 192.0.2.31, the node 192.0.2.32" {
		t.Errorf("without gateways and nodes: %s", got)
	}
}
