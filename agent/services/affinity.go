// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// forgetClients deletes the affinity of clients to removed endpoints. It runs after the write; until then such clients get connection
// errors, like clients that connect while an endpoint is removed.
func (w *writer) forgetClients(ctx context.Context, now current, local addresses) error {
	if len(now) == 0 {
		return nil
	}
	var failed []error
	for _, f := range families {
		failed = append(failed, w.forgetClientsOf(ctx, f, now, local))
	}
	return errors.Join(failed...)
}

// forgetClientsOf deletes the lost clients of one family. If many elements expire during the deletion, it lists the rest again: a
// bisection for each of them takes longer. The number of lost clients only decreases, because a client does not get a removed endpoint.
func (w *writer) forgetClientsOf(ctx context.Context, f family, now current, local addresses) error {
	name := f.object(mapAffinity, false)
	for last := affinitySize + 1; ; {
		list, err := w.nft.ListElements(ctx, "map", name)
		if err != nil {
			return fmt.Errorf("list nftables map %s: %w", name, err)
		}
		var lost []*knftables.Element
		for _, e := range list {
			if at, endpoint, ok := parseAffinity(f, e); ok && now.lost(at, endpoint, local) {
				lost = append(lost, e)
			}
		}
		if len(lost) >= last {
			return fmt.Errorf("delete from nftables map %s: %d elements are listed but cannot be deleted", name, len(lost))
		}
		last = len(lost)
		d := deletion[*knftables.Element]{nft: w.nft, write: func(tx *knftables.Transaction, e *knftables.Element) {
			tx.Delete(&knftables.Element{Map: name, Key: e.Key})
		}}
		if err := d.run(ctx, lost); err != nil {
			return fmt.Errorf("delete from nftables map %s: %w", name, err)
		}
		if !d.exhausted() {
			return nil
		}
	}
}

// lost reports whether an endpoint is no longer one of a front's endpoints.
func (c current) lost(at place, endpoint netip.AddrPort, local addresses) bool {
	endpoints, known := c[at]
	if !known {
		endpoints, known = c.nodePort(at, local)
	}
	return known && !endpoints[endpoint]
}

// nodePort returns the endpoints of the node port that a front belongs to. At an address that is not the node's, the port may belong to
// another Service.
func (c current) nodePort(at place, local addresses) (endpoints map[netip.AddrPort]bool, known bool) {
	if !local.has(at.front.Addr()) {
		return nil, false
	}
	at.front = netip.AddrPortFrom(netip.Addr{}, at.front.Port())
	endpoints, known = c[at]
	return endpoints, known
}

// addresses are the addresses of this node at which it serves node ports: single ones, and networks.
type addresses struct {
	single   map[netip.Addr]bool
	networks []netip.Prefix
}

func (a addresses) has(address netip.Addr) bool {
	return a.single[address] || slices.ContainsFunc(a.networks, func(n netip.Prefix) bool { return n.Contains(address) })
}

// localAddresses lists the destinations that the kernel's table of local routes delivers to the node itself, as `fib daddr type local`
// does. The kernel adds a route for each address of an interface; administrators may add routes for networks that no interface has.
func localAddresses() (addresses, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	list, err := netlinksafe.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return addresses{}, fmt.Errorf("list local routes: %w", err)
	}
	out := addresses{single: map[netip.Addr]bool{}}
	for i := range list {
		if list[i].Dst == nil {
			continue
		}
		network, err := netip.ParsePrefix(list[i].Dst.String())
		switch {
		case err != nil || network.Addr().IsLoopback():
		case network.IsSingleIP():
			out.single[network.Addr()] = true
		default:
			out.networks = append(out.networks, network)
		}
	}
	return out, nil
}

// parseAffinity parses an element of mapAffinity: the front and the endpoint that a client is assigned there.
func parseAffinity(f family, e *knftables.Element) (at place, endpoint netip.AddrPort, ok bool) {
	if len(e.Key) != 4 || len(e.Value) != 2 {
		return at, endpoint, false
	}
	if at, ok = parseFront(f, false, e.Key[:3]); !ok {
		return at, endpoint, false
	}
	endpoint, err := netip.ParseAddrPort(bracket(e.Value[0], e.Value[1]))
	return at, endpoint, err == nil
}

// protocolName returns the name of a protocol that nft(8) has listed: nft prints names if the system has protocols(5), and numbers (IANA)
// otherwise.
func protocolName(listed string) string {
	switch listed {
	case "6":
		return "tcp"
	case "17":
		return "udp"
	case "132":
		return "sctp"
	}
	return listed
}

func bracket(address, port string) string {
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return address + ":" + port
}
