// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"net/netip"
	"testing"
)

func TestConflict(t *testing.T) {
	around := Surroundings{
		Peers:    []Peer{{Name: "a", CIDRs: prefixes(t, "10.1.0.0/16,fd00:1::/64")}, {Name: "join", CIDRs: prefixes(t, "100.64.0.0/16")}},
		Services: prefixes(t, "10.96.0.0/12,fd00:96::/108"),
		Hosts:    map[netip.Addr]string{netip.MustParseAddr("192.168.0.2"): "node b", netip.MustParseAddr("192.168.0.1"): "node a"},
	}
	tests := []struct{ name, cidrs, message string }{
		{name: "no conflict", cidrs: "10.2.0.0/16,fd00:2::/64"},
		{name: "inside another subnet", cidrs: "10.1.4.0/24", message: "10.1.4.0/24 overlaps with 10.1.0.0/16,fd00:1::/64 of subnet a"},
		{name: "around another subnet", cidrs: "10.2.0.0/16,fd00::/16", message: "fd00::/16 overlaps with"},
		{name: "the join subnet", cidrs: "100.64.0.0/10", message: "of subnet join"},
		{name: "Services", cidrs: "10.100.0.0/16", message: "the addresses of Services, 10.96.0.0/12"},
		{name: "nodes, the lowest first", cidrs: "192.168.0.0/24", message: "holds 192.168.0.1, the address of node a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reason := ReasonCIDRConflict
			if tt.message == "" {
				reason = ""
			}
			expect(t, Conflict(prefixes(t, tt.cidrs), around), reason, tt.message)
		})
	}
}
