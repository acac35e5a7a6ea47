// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// stale finds connections of UDP to endpoints that are gone. A client that goes on from one port would stay with such an endpoint for
// as long as it talks; of TCP it would learn.
type stale struct {
	family family
	current
}

// MatchConntrackFlow reports whether an entry is to go (netlink.CustomConntrackFilter).
func (s stale) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, from := addrPort(flow.Forward.DstIP, flow.Forward.DstPort), addrPort(flow.Reverse.SrcIP, flow.Reverse.SrcPort)
	at := place{s.family, "udp", to}
	endpoints, known := s.current[at]
	if !known {
		at.front = netip.AddrPortFrom(netip.Addr{}, to.Port())
		if endpoints, known = s.current[at]; from == to {
			return false // to the node itself, or through it
		}
	}
	return known && !endpoints[from]
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	address, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(address.Unmap(), port)
}

// endStale deletes connections of UDP to endpoints that are gone.
func endStale(now current) error {
	if len(now) == 0 {
		return nil
	}
	var failed []error
	for _, f := range families {
		of := netlink.InetFamily(netlink.FAMILY_V4)
		if f.v6 {
			of = netlink.FAMILY_V6
		}
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, of, stale{f, now}); err != nil {
			failed = append(failed, fmt.Errorf("delete connections of UDP to endpoints that are gone: %w", err))
		}
	}
	return errors.Join(failed...)
}
