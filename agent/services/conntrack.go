// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// stale matches UDP connections to removed endpoints. A UDP client that keeps its source port would keep using the removed endpoint as
// long as it sends packets. A TCP client gets an error and reconnects.
type stale struct {
	family family
	current
	local addresses
}

// MatchConntrackFlow reports whether an entry must be deleted (netlink.CustomConntrackFilter).
func (s stale) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, from := addrPort(flow.Forward.DstIP, flow.Forward.DstPort), addrPort(flow.Reverse.SrcIP, flow.Reverse.SrcPort)
	at := place{s.family, "udp", to}
	endpoints, known := s.current[at]
	if !known {
		endpoints, known = s.nodePort(at, s.local)
		if from == to || flow.Zone != 0 {
			return false // not translated, a connection to the node itself; or in a zone of OVN, which does not serve node ports
		}
	}
	return known && !endpoints[from]
}

// inheritedFronts returns the fronts in the table that an earlier process has written; none if there is no table.
func inheritedFronts(ctx context.Context, nft knftables.Interface) ([]place, error) {
	var fronts []place
	for _, f := range families {
		for _, node := range []bool{false, true} {
			list, err := nft.ListElements(ctx, "map", f.object(mapFronts, node))
			if knftables.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list nftables map %s: %w", f.object(mapFronts, node), err)
			}
			for _, e := range list {
				if at, ok := parseFront(f, node, e.Key); ok {
					fronts = append(fronts, at)
				}
			}
		}
	}
	return fronts, nil
}

// parseFront parses the key of a front: address, protocol and port, without the address for a node port.
func parseFront(f family, node bool, key []string) (at place, ok bool) {
	var address netip.Addr
	if !node && len(key) > 0 {
		var err error
		if address, err = netip.ParseAddr(key[0]); err != nil {
			return at, false
		}
		key = key[1:]
	}
	if len(key) != 2 {
		return at, false
	}
	port, err := strconv.ParseUint(key[1], 10, 16)
	return place{f, protocolName(key[0]), netip.AddrPortFrom(address, uint16(port))}, err == nil
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	address, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(address.Unmap(), port)
}

// endStale deletes UDP connections to removed endpoints.
func endStale(now current, local addresses) error {
	if len(now) == 0 {
		return nil
	}
	var failed []error
	for _, f := range families {
		of := netlink.InetFamily(netlink.FAMILY_V4)
		if f.v6 {
			of = netlink.FAMILY_V6
		}
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, of, stale{f, now, local}); err != nil {
			failed = append(failed, fmt.Errorf("delete UDP connections to removed endpoints: %w", err))
		}
	}
	return errors.Join(failed...)
}
