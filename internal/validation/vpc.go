// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/validation/match"
)

// maxPolicyPriority is OVN's greatest priority of a router policy (ovn-nb(5), Logical_Router_Policy).
const maxPolicyPriority = 32767

// maxMonitored bounds the next hops of a VPC's static routes with a BFD session: the node of an external port sends the packets of all of its sessions.
const maxMonitored = 64

// symmetricReply is the only value of ecmpMode.
const symmetricReply = "ecmp_symmetric_reply"

// Router has the valid entries of a VPC's spec for its router. Invalid entries are skipped, so that they do not affect others. A route with one monitored next hop too many is
// not skipped, because bfdId had no effect in earlier versions.
type Router struct {
	Routes   []StaticRoute
	Policies []PolicyRoute
	Peerings []Peering
}

// StaticRoute is an entry of staticRoutes. No two have the same Prefix, BySource, NextHop and Table.
type StaticRoute struct {
	// Index in the list.
	Index    int
	Prefix   netip.Prefix
	BySource bool
	NextHop  netip.Addr
	Table    string
	// SymmetricReply is ecmpMode ecmp_symmetric_reply.
	SymmetricReply bool
	// Monitored: bfdId requests a BFD session with NextHop.
	Monitored bool
}

// PolicyRoute is an entry of policyRoutes. No two have the same Priority and Match.
type PolicyRoute struct {
	Index    int
	Priority int
	Match    string
	Action   kubeovnv1.PolicyRouteAction
	// NextHops of a reroute, without duplicates.
	NextHops []netip.Addr
}

// Peering is an entry of vpcPeerings. No two have the same Remote.
type Peering struct {
	Index  int
	Remote string
	// Addresses of the router on the link, with its prefix lengths, at most one per family.
	Addresses []netip.Prefix
}

// Vpc parses the router entries of a VPC's spec. It returns the valid ones, and the problems that do not depend on other
// objects.
func Vpc(name string, spec *kubeovnv1.VpcSpec) (Router, []*Problem) {
	var r Router
	var problems []*Problem
	monitored := map[netip.Addr]bool{}
	for i, entry := range spec.StaticRoutes {
		route, err := staticRoute(entry)
		if err == nil {
			err = r.sameRoute(route)
		}
		if err != nil {
			problems = append(problems, Problemf(ReasonRouteInvalid, "staticRoutes[%d]: %v", i, err))
			continue
		}
		route.Index = i
		if err := route.monitor(monitored); err != nil {
			problems = append(problems, Problemf(ReasonRouteInvalid, "staticRoutes[%d]: %v", i, err))
		}
		r.Routes = append(r.Routes, route)
	}
	for i, entry := range spec.PolicyRoutes {
		policy, err := policyRoute(entry)
		if err == nil {
			err = r.samePolicy(policy)
		}
		if err != nil {
			problems = append(problems, Problemf(ReasonRouteInvalid, "policyRoutes[%d]: %v", i, err))
			continue
		}
		policy.Index = i
		r.Policies = append(r.Policies, policy)
	}
	for i, entry := range spec.VpcPeerings {
		peering, err := vpcPeering(name, entry)
		if err == nil {
			err = r.samePeering(peering)
		}
		if err != nil {
			problems = append(problems, Problemf(ReasonPeeringInvalid, "vpcPeerings[%d]: %v", i, err))
			continue
		}
		peering.Index = i
		r.Peerings = append(r.Peerings, peering)
	}
	return r, problems
}

func staticRoute(r *kubeovnv1.StaticRoute) (StaticRoute, error) {
	route := StaticRoute{Table: r.RouteTable, SymmetricReply: r.ECMPMode == symmetricReply, Monitored: r.BFDID != ""}
	switch r.Policy {
	case "", kubeovnv1.RouteByDestination:
	case kubeovnv1.RouteBySource:
		route.BySource = true
	default:
		return route, fmt.Errorf("policy %q: must be %s or %s", r.Policy, kubeovnv1.RouteByDestination, kubeovnv1.RouteBySource)
	}
	if r.ECMPMode != "" && r.ECMPMode != symmetricReply {
		return route, fmt.Errorf("ecmpMode %q: must be empty or %s", r.ECMPMode, symmetricReply)
	}
	var err error
	if route.Prefix, err = addrOrCIDR(r.CIDR); err != nil {
		return route, fmt.Errorf("cidr %q: must be a CIDR or an address", r.CIDR)
	}
	if route.NextHop, err = ipfamily.ParseAddr(r.NextHopIP); err != nil {
		return route, fmt.Errorf("nextHopIP: %w", err)
	}
	if ipfamily.Of(route.Prefix.Addr()) != ipfamily.Of(route.NextHop) {
		return route, fmt.Errorf("cidr %s and nextHopIP %s are of two families: write a route of each", route.Prefix, route.NextHop)
	}
	return route, nil
}

func (r *Router) sameRoute(route StaticRoute) error {
	for _, other := range r.Routes {
		if other.Prefix == route.Prefix && other.BySource == route.BySource && other.NextHop == route.NextHop && other.Table == route.Table {
			return fmt.Errorf("the route to %s by %s is in staticRoutes[%d] already, which is the applied one: remove one of them",
				route.Prefix, route.NextHop, other.Index)
		}
	}
	return nil
}

// monitor adds the next hop of a monitored route to hops. Beyond the maximum the route remains, without a session.
func (r *StaticRoute) monitor(hops map[netip.Addr]bool) error {
	if !r.Monitored || hops[r.NextHop] {
		return nil
	}
	if len(hops) == maxMonitored {
		r.Monitored = false
		return fmt.Errorf("bfdId: next hop %s is beyond %d monitored ones, the maximum of a VPC: remove the bfdId of this route or of others", r.NextHop, maxMonitored)
	}
	hops[r.NextHop] = true
	return nil
}

func policyRoute(r *kubeovnv1.PolicyRoute) (PolicyRoute, error) {
	policy := PolicyRoute{Priority: r.Priority, Match: strings.TrimSpace(r.Match), Action: r.Action}
	if r.Priority < 0 || r.Priority > maxPolicyPriority {
		return policy, fmt.Errorf("priority %d: must be from 0 to %d", r.Priority, maxPolicyPriority)
	}
	if _, err := match.Parse(policy.Match); err != nil {
		return policy, fmt.Errorf("match: %w", err)
	}
	switch r.Action {
	case kubeovnv1.PolicyRouteAllow, kubeovnv1.PolicyRouteDrop:
		return policy, nil
	case kubeovnv1.PolicyRouteReroute:
	default:
		return policy, fmt.Errorf("action %q: must be %s, %s or %s", r.Action,
			kubeovnv1.PolicyRouteAllow, kubeovnv1.PolicyRouteDrop, kubeovnv1.PolicyRouteReroute)
	}
	for hop := range strings.SplitSeq(r.NextHopIP, ",") {
		addr, err := ipfamily.ParseAddr(hop)
		if err != nil {
			return policy, fmt.Errorf("nextHopIP of action %s: %w", r.Action, err)
		}
		if !slices.Contains(policy.NextHops, addr) {
			policy.NextHops = append(policy.NextHops, addr)
		}
	}
	return policy, nil
}

func (r *Router) samePolicy(policy PolicyRoute) error {
	for _, other := range r.Policies {
		if other.Priority == policy.Priority && other.Match == policy.Match {
			return fmt.Errorf("priority %d and match %q are also in policyRoutes[%d], which is the applied one: change the priority of one of them",
				policy.Priority, policy.Match, other.Index)
		}
	}
	return nil
}

const howToWriteConnectIP = "write an address with its prefix length, like 169.254.0.1/30, or one of each family with a comma between them"

func vpcPeering(vpc string, p *kubeovnv1.VpcPeering) (Peering, error) {
	peering := Peering{Remote: p.RemoteVpc}
	if p.RemoteVpc == "" || p.RemoteVpc == vpc {
		return peering, fmt.Errorf("remoteVpc %q: must be another VPC", p.RemoteVpc)
	}
	if p.LocalConnectIP == "" {
		return peering, fmt.Errorf("localConnectIP is empty: %s", howToWriteConnectIP)
	}
	for s := range strings.SplitSeq(p.LocalConnectIP, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil || prefix.Addr().Is4In6() {
			return peering, fmt.Errorf("localConnectIP %q: %s", s, howToWriteConnectIP)
		}
		if prefix.Bits() == 0 || reserved(prefix.Addr(), prefix) {
			return peering, fmt.Errorf("localConnectIP %s is no address that a port can have: %s", prefix, howToWriteConnectIP)
		}
		if slices.ContainsFunc(peering.Addresses, func(other netip.Prefix) bool { return sameFamily(other, prefix) }) {
			return peering, fmt.Errorf("localConnectIP %q has two addresses of one family: %s", p.LocalConnectIP, howToWriteConnectIP)
		}
		peering.Addresses = append(peering.Addresses, prefix)
	}
	return peering, nil
}

func (r *Router) samePeering(peering Peering) error {
	for _, other := range r.Peerings {
		if other.Remote == peering.Remote {
			return fmt.Errorf("VPC %s is the remoteVpc of vpcPeerings[%d] already, which is the applied one: remove one of them",
				peering.Remote, other.Index)
		}
		for _, address := range peering.Addresses {
			if i := slices.IndexFunc(other.Addresses, address.Overlaps); i >= 0 {
				return fmt.Errorf("localConnectIP %s overlaps with %s of vpcPeerings[%d]: choose another network on both sides",
					address, other.Addresses[i], other.Index)
			}
		}
	}
	return nil
}

// Networks returns the networks of all links.
func (r Router) Networks() []netip.Prefix {
	var networks []netip.Prefix
	for _, peering := range r.Peerings {
		networks = append(networks, peering.Networks()...)
	}
	return networks
}

// Networks returns the networks of the link.
func (p Peering) Networks() []netip.Prefix {
	networks := make([]netip.Prefix, 0, len(p.Addresses))
	for _, address := range p.Addresses {
		networks = append(networks, address.Masked())
	}
	return networks
}

// Link checks both ends of a link against each other. The problem is for the VPC of the local end.
func Link(local, remote Peering) *Problem {
	for _, address := range local.Addresses {
		i := slices.IndexFunc(remote.Addresses, func(other netip.Prefix) bool { return sameFamily(other, address) })
		switch {
		case i < 0:
			return Problemf(ReasonPeeringInvalid,
				"vpcPeerings[%d]: localConnectIP %s has no counterpart of its family on VPC %s: write one there, or leave this one out",
				local.Index, address, local.Remote)
		case remote.Addresses[i].Masked() != address.Masked():
			return Problemf(ReasonPeeringInvalid,
				"vpcPeerings[%d]: localConnectIP %s and VPC %s's, %s, are in two networks: choose two addresses of one network",
				local.Index, address, local.Remote, remote.Addresses[i])
		case remote.Addresses[i] == address:
			return Problemf(ReasonPeeringInvalid,
				"vpcPeerings[%d]: localConnectIP %s is also VPC %s's: choose another address of its network for one of them",
				local.Index, address, local.Remote)
		}
	}
	if len(remote.Addresses) > len(local.Addresses) {
		return Problemf(ReasonPeeringInvalid, "vpcPeerings[%d]: VPC %s has %d localConnectIPs, this one has %d: write one of the same families",
			local.Index, local.Remote, len(remote.Addresses), len(local.Addresses))
	}
	return nil
}

// OneSided is the problem of a peering that the other VPC lacks.
func OneSided(vpc string, local Peering, remoteExists bool) *Problem {
	if !remoteExists {
		return Problemf(ReasonPeerMissing, "vpcPeerings[%d]: VPC %s does not exist: create it, with a peering whose remoteVpc is %s",
			local.Index, local.Remote, vpc)
	}
	return Problemf(ReasonPeerMissing, "vpcPeerings[%d]: VPC %s has no peering with this one: add one whose remoteVpc is %s to its vpcPeerings",
		local.Index, local.Remote, vpc)
}

// PeeringOverlap is the problem of a link whose network overlaps with a subnet of the VPC.
func PeeringOverlap(p Peering, subnet, cidrs string) *Problem {
	return Problemf(ReasonPeeringInvalid, "vpcPeerings[%d]: localConnectIP %s overlaps with %s of subnet %s in the same VPC: choose another network on both sides",
		p.Index, ipfamily.Join(p.Addresses), cidrs, subnet)
}

// LinkConflict is the problem of a subnet that overlaps with a link between its VPC and another; nil if there is no overlap.
func LinkConflict(cidrs []netip.Prefix, link Peering) *Problem {
	for _, cidr := range cidrs {
		if network, ok := overlapping(cidr, link.Networks()); ok {
			return Problemf(ReasonCIDRConflict, "cidrBlock %s overlaps with %s, the link of the VPC with VPC %s: choose another one",
				cidr, network, link.Remote)
		}
	}
	return nil
}

// Unreachable is the problem of a next hop in no network of the router.
func Unreachable(field string, index int, hop netip.Addr) *Problem {
	return Problemf(ReasonNextHopUnreachable,
		"%s[%d]: next hop %s is in no subnet of the VPC and on no link to a peer: choose an address that is, or create the subnet", field, index, hop)
}

// ConflictingNamespace is the problem of a namespace that another VPC lists.
func ConflictingNamespace(namespace, vpc string) *Problem {
	return Problemf(ReasonNamespaceTaken, "namespaces: %s is of VPC %s already, and a namespace is of one VPC: remove it from one of them", namespace, vpc)
}

// ForeignDefaultSubnet is the problem of a defaultSubnet in another VPC.
func ForeignDefaultSubnet(subnet, vpc string) *Problem {
	return Problemf(ReasonFieldInvalid, "defaultSubnet %s is of VPC %s: name a subnet of this VPC", subnet, vpc)
}

// NoDefaultSubnet is the problem of a defaultSubnet that does not exist.
func NoDefaultSubnet(subnet string) *Problem {
	return Problemf(ReasonSubnetMissing, "defaultSubnet %s does not exist: create it, or name another one", subnet)
}

// SameName is the name conflict of a Vpc and a Subnet, for the younger of them.
func SameName(kind, name string) *Problem {
	return Problemf(ReasonNameConflict, "there is a %s named %s, and a router and a switch cannot share a name: choose another one", kind, name)
}

// Joined merges problems into one, with the reason of the first; nil if there are none.
func Joined(problems []*Problem) *Problem {
	if len(problems) == 0 {
		return nil
	}
	messages := make([]string, 0, len(problems))
	for _, p := range problems {
		messages = append(messages, p.Message)
	}
	return &Problem{Reason: problems[0].Reason, Message: strings.Join(messages, "; ")}
}

func sameFamily(a, b netip.Prefix) bool { return ipfamily.Of(a.Addr()) == ipfamily.Of(b.Addr()) }

func addrOrCIDR(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return ipfamily.ParseCIDR(s)
	}
	addr, err := ipfamily.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(addr, addr.BitLen()), nil
}
