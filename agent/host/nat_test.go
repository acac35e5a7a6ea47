// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"path/filepath"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/golden"
)

func TestSetMasquerade(t *testing.T) {
	fake := knftables.NewFake(knftables.InetFamily, NATTable)
	for _, step := range []struct {
		golden string
		m      Masquerade
	}{
		{"dual.nft", Masquerade{
			Cluster:  prefixes("10.16.0.0/16", "10.96.0.0/12", "100.64.0.0/16", "fd00:10:16::/112", "fd00:100:64::/112"),
			Outgoing: prefixes("10.16.0.0/16", "100.64.0.0/16", "fd00:10:16::/112", "fd00:100:64::/112"),
			Central:  prefixes("100.64.0.0/16", "fd00:100:64::/112"),
			Join:     prefixes("100.64.0.0/16", "fd00:100:64::/112"),
			Node:     prefixes("192.0.2.1/32", "2001:db8::1/128"),
		}},
		{"gateway.nft", Masquerade{
			Cluster:  prefixes("10.16.0.0/16", "10.17.0.0/24", "fd00:10:17::/112"),
			Outgoing: prefixes("10.16.0.0/16", "10.17.0.0/24", "fd00:10:17::/112"),
			Central:  prefixes("10.17.0.0/24", "fd00:10:17::/112"),
			SourceNAT: []SourceNAT{
				{netip.MustParsePrefix("10.17.0.0/24"), netip.MustParseAddr("192.0.2.7")},
				{netip.MustParsePrefix("fd00:10:17::/112"), netip.MustParseAddr("2001:db8::7")},
			},
			Policies: []Policy{{Subnet: "shop", From: prefixes("10.17.0.0/24", "fd00:10:17::/112"), Rules: []gateway.NATRule{
				{Sources: prefixes("10.17.0.5/32", "10.17.0.0/28", "10.17.0.3/32"), Destinations: prefixes("198.51.100.0/24", "2001:db8:1::/48"), Forward: true},
				{Destinations: prefixes("2001:db8:2::/48")},
				{Forward: true},
			}}},
		}},
		{"ipv4-without-nat.nft", Masquerade{Cluster: prefixes("10.16.0.0/16"), Node: prefixes("192.0.2.1/32")}},
	} {
		t.Run(step.golden, func(t *testing.T) {
			for range 2 { // the second time must not change anything
				if err := setMasquerade(t.Context(), fake, step.m); err != nil {
					t.Fatal(err)
				}
			}
			golden.Compare(t, filepath.Join("testdata", step.golden), []byte(fake.Dump()))
		})
	}
}
