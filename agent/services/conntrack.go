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
