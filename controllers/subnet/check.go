// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/selection"
	"github.com/kiln-net/kiln/internal/validation"
)

// checked is what a subnet's spec says, found right.
type checked struct {
	network  validation.Network
	features validation.Features
	// querier asks for multicast groups; nil without multicast snooping, and while no address is free.
	querier *translate.Querier
}

// admissions are subnets that were found right and whose rows are on their way to the northbound database.
type admissions struct {
	// one is held while a subnet is checked against others: of two that overlap and are worked on at a time one has to see the other.
	one sync.Mutex

	mu    sync.Mutex
	cidrs map[string][]netip.Prefix
}

func (a *admissions) set(name string, cidrs []netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cidrs == nil {
		a.cidrs = map[string][]netip.Prefix{}
	}
	a.cidrs[name] = cidrs
}

func (a *admissions) end(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.cidrs, name)
}

func (a *admissions) has(name string, cidrs []netip.Prefix) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	admitted := a.cidrs[name]
	return len(admitted) == len(cidrs) && !slices.ContainsFunc(admitted, func(c netip.Prefix) bool { return !slices.Contains(cidrs, c) })
}

// admit checks a subnet, one at a time. What is right counts as in force from then on, until its rows are committed or are not: call end then.
func (r *Reconciler) admit(ctx context.Context, in *inputs) (checked, *validation.Problem, error) {
	r.admissions.one.Lock()
	defer r.admissions.one.Unlock()
	if err := r.gatherAround(ctx, in); err != nil {
		return checked{}, nil, err
	}
	found, problem := r.check(*in)
	if problem == nil && len(found.network.CIDRs) > 0 {
		r.admissions.set(in.subnet.Name, found.network.CIDRs)
	}
	return found, problem, nil
}

// check reads the subnet's spec and finds what is wrong with it, by itself and against what others use. Nodes, the API server and
// Services are reached from the default VPC only, so subnets of other VPCs may have their addresses; pods are not given those of nodes and of
// the API server there (controllers/pod, hosts).
func (r *Reconciler) check(in inputs) (checked, *validation.Problem) {
	network, problem := validation.Subnet(in.subnet.Name, &in.subnet.Spec)
	if problem != nil || len(validation.UnbuiltSubnetFields(&in.subnet.Spec)) > 0 {
		return checked{}, problem
	}
	features, problem := validation.SubnetFeatures(&in.subnet.Spec, network)
	if problem != nil {
		return checked{}, problem
	}
	if in.namesake != nil && selection.Senior(in.namesake, in.subnet) {
		return checked{}, validation.SameName("Vpc", in.subnet.Name)
	}
	around := validation.Surroundings{Peers: r.seniors(in)}
	if selection.VpcOf(in.subnet) == kubeovnv1.DefaultVpc {
		around.Services, around.Hosts = in.services, in.hosts
	}
	for _, vip := range features.Vips { // no port gets it for its own
		network.Exclude = append(network.Exclude, ipfamily.Range{From: vip, To: vip})
	}
	if problem := validation.Conflict(network.CIDRs, around); problem != nil {
		return checked{}, problem
	}
	if problem := r.linkConflict(in, network.CIDRs); problem != nil {
		return checked{}, problem
	}
	return checked{network: network, features: features}, r.checkUse(in.subnet, network)
}

// seniors are the subnets that overlap with this one and that it has to give way to.
func (r *Reconciler) seniors(in inputs) []validation.Peer {
	var peers []validation.Peer
	for _, peer := range in.peers {
		if peer.Spec.Vlan == in.subnet.Spec.Vlan && r.yields(in.subnet, peer) {
			theirs, _ := ipfamily.ParseCIDRs(peer.Spec.CIDRBlock)
			peers = append(peers, validation.Peer{Name: peer.Name, CIDRs: theirs})
		}
	}
	return peers
}

// linkConflict finds a link between the subnet's VPC and another that holds addresses of the subnet. A link that is not in force yet
// gives way.
func (r *Reconciler) linkConflict(in inputs, cidrs []netip.Prefix) *validation.Problem {
	if in.vpc == nil || len(in.vpc.Spec.VpcPeerings) == 0 || r.inForce(in.subnet) {
		return nil
	}
	router, _ := validation.Vpc(in.vpc.Name, &in.vpc.Spec)
	for _, peering := range router.Peerings {
		port := northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.PeerPortRef(in.vpc.Name, peering.Remote))
		if p := validation.LinkConflict(cidrs, peering); p != nil && port != nil && hasNetworks(port, peering.Networks()) {
			return p
		}
	}
	return nil
}

// yields reports whether, of two subnets that overlap, s is the wrong one: the one whose CIDRs are not those in force, so that a
// change never hurts a subnet that works; else the younger one.
func (r *Reconciler) yields(s, peer *kubeovnv1.Subnet) bool {
	ours, theirs := r.inForce(s), r.inForce(peer)
	if ours != theirs {
		return theirs
	}
	if c := s.CreationTimestamp.Compare(peer.CreationTimestamp.Time); c != 0 {
		return c > 0
	}
	return s.Name > peer.Name
}

// inForce reports whether the router's port of a subnet has the CIDRs that its spec holds, or is about to.
func (r *Reconciler) inForce(s *kubeovnv1.Subnet) bool {
	cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	port := northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.RouterPortRef(s.Name))
	switch {
	case err != nil || len(cidrs) == 0:
		return false
	case port != nil && hasNetworks(port, cidrs):
		return true
	}
	return r.admissions.has(s.Name, cidrs)
}

// hasNetworks reports whether a router's port is on these networks and no others.
func hasNetworks(port *nb.LogicalRouterPort, cidrs []netip.Prefix) bool {
	return len(port.Networks) == len(cidrs) && !slices.ContainsFunc(port.Networks, func(network string) bool {
		cidr, err := ipfamily.ParseCIDR(network)
		return err != nil || !slices.Contains(cidrs, cidr)
	})
}
