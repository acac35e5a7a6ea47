// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/internal/testing/must"
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

// expiring is nftables in which listed elements expire before the first deletion.
type expiring struct {
	knftables.Interface
	name    string
	expires [][]string // keys
	runs    int
}

func (x *expiring) Run(ctx context.Context, tx *knftables.Transaction) error {
	if len(x.expires) > 0 {
		expiry := x.NewTransaction()
		for _, key := range x.expires {
			expiry.Delete(&knftables.Element{Map: x.name, Key: key})
		}
		x.expires = nil
		if err := x.Interface.Run(ctx, expiry); err != nil {
			return err
		}
	}
	x.runs++
	return x.Interface.Run(ctx, tx)
}

// A Service can have a client in each element of the map, and elements can expire at any time.
func TestManyClientsAreForgottenInFewTransactions(t *testing.T) {
	const lost = 3 * deletionBatch
	for _, f := range families {
		for _, expired := range []int{0, 1, 2 * deletionBatch} {
			t.Run(fmt.Sprintf("%s, %d expire", f.key, expired), func(t *testing.T) {
				nft := &expiring{Interface: knftables.NewFake(knftables.InetFamily, Table), name: f.object(mapAffinity, false)}
				w := newWriter(nft)
				must.Succeed(t, w.rewrite(t.Context(), nil, nil, nil))
				front, removed, stays := "10.96.0.80", []string{"10.16.0.8", "8080"}, []string{"10.16.0.9", "8080"}
				if f.v6 {
					front, removed[0], stays[0] = "fd00:10:96::80", "fd00:10:16::8", "fd00:10:16::9"
				}
				client := netip.MustParseAddr(map[bool]string{false: "192.0.2.1", true: "2001:db8::1"}[f.v6])
				tx := nft.NewTransaction()
				add := func(endpoint []string) (key []string) {
					key = []string{front, "tcp", "80", client.String()}
					tx.Add(&knftables.Element{Map: nft.name, Key: key, Value: endpoint})
					client = client.Next()
					return key
				}
				for range lost {
					if key := add(removed); len(nft.expires) < expired {
						nft.expires = append(nft.expires, key)
					}
				}
				remaining := add(stays)
				must.Succeed(t, nft.Interface.Run(t.Context(), tx))
				nft.runs = 0
				at := place{f, "tcp", netip.AddrPortFrom(netip.MustParseAddr(front), 80)}
				now := current{at: {netip.MustParseAddrPort(bracket(stays[0], stays[1])): true}}
				must.Succeed(t, w.forgetClients(t.Context(), now, addresses{}))
				if most := 200; nft.runs > most {
					t.Errorf("%d transactions, want at most %d", nft.runs, most)
				}
				list, err := nft.ListElements(t.Context(), "map", nft.name)
				must.Succeed(t, err)
				if len(list) != 1 || !slices.Equal(list[0].Key, remaining) {
					t.Errorf("%d elements are left, want only the client of the remaining endpoint", len(list))
				}
			})
		}
	}
}

// The node port of a Service can be the port of another Service at an address that is not the node's.
func TestANodePortIsAtTheAddressesOfTheNodeOnly(t *testing.T) {
	for _, f := range families {
		ours, routed, other := netip.MustParseAddr("172.30.0.11"), netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("10.96.0.80")
		endpoint := netip.MustParseAddrPort("10.16.0.8:53")
		if f.v6 {
			ours, routed, other = netip.MustParseAddr("fd00::11"), netip.MustParseAddr("2001:db8:7::7"), netip.MustParseAddr("fd00:10:96::80")
			endpoint = netip.MustParseAddrPort("[fd00:10:16::8]:53")
		}
		local, now := addresses{single: map[netip.Addr]bool{ours: true}, networks: []netip.Prefix{netip.PrefixFrom(routed, routed.BitLen()-8).Masked()}}, current{place{f, "udp", netip.AddrPortFrom(netip.Addr{}, 30053)}: {}}
		for _, tt := range []struct {
			name    string
			address netip.Addr
			from    netip.AddrPort
			zone    uint16
			lost    bool // the client of the endpoint
			ends    bool // the connection
		}{
			{"an address of the node", ours, endpoint, 0, true, true},
			{"an address of a network that is local by a route", routed, endpoint, 0, true, true},
			{"a zone of OVN", ours, endpoint, 7, true, false},
			{"not translated", ours, netip.AddrPortFrom(ours, 30053), 0, true, false},
			{"an address of another Service", other, endpoint, 0, false, false},
			{"an address of another Service, in a zone of OVN", other, endpoint, 7, false, false},
		} {
			to := netip.AddrPortFrom(tt.address, 30053)
			if got := now.lost(place{f, "udp", to}, tt.from, local); got != tt.lost {
				t.Errorf("%s, %s: the client is lost: %t, want %t", f.key, tt.name, got, tt.lost)
			}
			flow := &netlink.ConntrackFlow{Zone: tt.zone}
			flow.Forward = netlink.IPTuple{Protocol: unix.IPPROTO_UDP, DstIP: to.Addr().AsSlice(), DstPort: to.Port()}
			flow.Reverse = netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: tt.from.Addr().AsSlice(), SrcPort: tt.from.Port()}
			if got := (stale{f, now, local}).MatchConntrackFlow(flow); got != tt.ends {
				t.Errorf("%s, %s: the connection ends: %t, want %t", f.key, tt.name, got, tt.ends)
			}
		}
	}
}
