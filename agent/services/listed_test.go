// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/knftables"
)

// nft lists protocols by number on a system without the file protocols(5).
func TestClientsAreReadWithProtocolsByNameAndNumber(t *testing.T) {
	for listed, name := range map[string]string{"tcp": "tcp", "6": "tcp", "udp": "udp", "17": "udp", "sctp": "sctp", "132": "sctp"} {
		e := &knftables.Element{Key: []string{"10.96.0.80", listed, "80", "192.0.2.6"}, Value: []string{"10.16.0.8", "8080"}}
		at, endpoint, ok := parseAffinity(families[0], e)
		want := place{families[0], name, netip.MustParseAddrPort("10.96.0.80:80")}
		if !ok || at != want || endpoint != netip.MustParseAddrPort("10.16.0.8:8080") {
			t.Errorf("%s: got %+v, %s, %t; want %+v", listed, at, endpoint, ok, want)
		}
	}
}
