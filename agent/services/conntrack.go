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
	"k8s.io/apimachinery/pkg/types"
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

// pending has fronts to which connections may have to be ended, and whether clients may have sessions there.
type pending map[place]bool

// maxPending bounds the fronts that are retained while passes fail.
const maxPending = 1 << 16

// record adds the fronts of pools that can have connections to removed endpoints.
func (p pending) record(pools map[types.NamespacedName][]pool) {
	for _, of := range pools {
		for i := range of {
			for _, f := range of[i].fronts {
				at, sessions := of[i].place(f), of[i].affinity > 0
				if (sessions || at.proto == "udp") && len(p) < maxPending {
					p[at] = p[at] || sessions
				}
			}
		}
	}
}

// inheritedFronts returns the fronts in the table that an earlier process has written or released; none if there is no table. With an error,
// the list is not complete.
func inheritedFronts(ctx context.Context, nft knftables.Interface) (pending, error) {
	fronts := pending{}
	for _, f := range families {
		for _, node := range []bool{false, true} {
			for _, object := range [][2]string{{"map", mapFronts}, {"set", setRefused}, {"set", setReleased}} {
				name := f.object(object[1], node)
				list, err := nft.ListElements(ctx, object[0], name)
				if knftables.IsNotFound(err) {
					continue
				}
				if err != nil {
					return fronts, fmt.Errorf("list nftables %s %s: %w", object[0], name, err)
				}
				for _, e := range list {
					if at, ok := parseFront(f, node, e.Key); ok {
						fronts[at] = true
					}
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
