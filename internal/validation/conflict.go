// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"net/netip"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Surroundings are the networks with which the CIDRs of a subnet must not overlap.
type Surroundings struct {
	// Peers are the subnets of the same VPC and VLAN that have precedence over this one, in order of name.
	Peers []Peer
	// Services are the CIDRs of Services. Empty for a VPC that does not serve them.
	Services []netip.Prefix
	// Hosts maps addresses that nodes must reach through their own network to their owners: "node a", "the API server". Empty
	// for a VPC without connected nodes.
	Hosts map[netip.Addr]string
}

// Peer is another subnet.
type Peer struct {
	Name  string
	CIDRs []netip.Prefix
	// Vlan is the Vlan of both, if any.
	Vlan string
}

// shared names what a subnet and the peer share.
func (p Peer) shared() string {
	if p.Vlan != "" {
		return "on Vlan " + p.Vlan
	}
	return "in the same VPC"
}

// Conflict returns the first overlap of a subnet's CIDRs with its surroundings. The join subnet is one of Peers.
func Conflict(cidrs []netip.Prefix, around Surroundings) *Problem {
	for _, cidr := range cidrs {
		if services, ok := overlapping(cidr, around.Services); ok {
			return Problemf(ReasonCIDRConflict, "cidrBlock %s overlaps with the addresses of Services, %s: choose another one", cidr, services)
		}
		if host, owner, ok := lowestIn(cidr, around.Hosts); ok {
			return Problemf(ReasonCIDRConflict, "cidrBlock %s holds %s, the address of %s: choose another one", cidr, host, owner)
		}
		for _, peer := range around.Peers {
			if _, ok := overlapping(cidr, peer.CIDRs); ok {
				return Problemf(ReasonCIDRConflict, "cidrBlock %s overlaps with %s of subnet %s %s: choose another one",
					cidr, ipfamily.Join(peer.CIDRs), peer.Name, peer.shared())
			}
		}
	}
	return nil
}

// lowestIn returns the lowest host in a CIDR, so that the message is deterministic.
func lowestIn(cidr netip.Prefix, hosts map[netip.Addr]string) (host netip.Addr, owner string, ok bool) {
	for addr, name := range hosts {
		if cidr.Contains(addr) && (!ok || addr.Less(host)) {
			host, owner, ok = addr, name, true
		}
	}
	return host, owner, ok
}
