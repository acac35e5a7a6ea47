// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation"
)

// checked is the parsed form of a subnet's valid spec.
type checked struct {
	network  validation.Network
	features validation.Features
	// querier sends multicast group membership queries; nil without multicast snooping, and while no address is free.
	querier *translate.Querier
}

// admissions holds the CIDRs of subnets that were validated and whose rows are being committed.
type admissions struct {
	// one serializes checks: of two overlapping subnets that are reconciled in parallel, the second must see the first.
	one sync.Mutex

	mu    sync.Mutex
	cidrs map[string][]netip.Prefix
	// routed are the subnets with a router port.
	routed map[string]bool
}

func (a *admissions) set(name string, cidrs []netip.Prefix, routed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cidrs == nil {
		a.cidrs, a.routed = map[string][]netip.Prefix{}, map[string]bool{}
	}
	a.cidrs[name], a.routed[name] = cidrs, routed
}

func (a *admissions) end(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.cidrs, name)
	delete(a.routed, name)
}

func (a *admissions) has(name string, cidrs []netip.Prefix, routed bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	admitted := a.cidrs[name]
	return (a.routed[name] || !routed) && len(admitted) == len(cidrs) && !slices.ContainsFunc(admitted, func(c netip.Prefix) bool { return !slices.Contains(cidrs, c) })
}

// admit validates a subnet while no other subnet is validated. A valid subnet counts as applied from then on. The caller must call
// admissions.end when its rows are committed or failed.
func (r *Reconciler) admit(ctx context.Context, in *inputs) (checked, *validation.Problem, error) {
	r.admissions.one.Lock()
	defer r.admissions.one.Unlock()
	if err := r.gatherAround(ctx, in); err != nil {
		return checked{}, nil, err
	}
	found, problem := r.check(*in)
	if problem == nil && len(found.network.CIDRs) > 0 {
		r.admissions.set(in.subnet.Name, found.network.CIDRs, in.subnet.Spec.OnRouter())
	}
	return found, problem, nil
}

// check validates the subnet's spec, by itself and against other users of its addresses. A host never makes an applied subnet invalid: the newer of the
// two is in error (controllers/node). Nodes, the API server and Services are reachable
// from the default VPC only, so that subnets of other VPCs may contain their addresses. Pods there do not get addresses of nodes or the API
// server (controllers/pod, hosts).
func (r *Reconciler) check(in inputs) (checked, *validation.Problem) {
	found, problem := parse(in.subnet)
	if problem != nil {
		return checked{}, problem
	}
	network, features := found.network, found.features
	if in.namesake != nil && lookup.Precedes(in.namesake, in.subnet) {
		return checked{}, validation.SameName("Vpc", in.subnet.Name)
	}
	around := validation.Surroundings{Peers: r.olderPeers(in)}
	if lookup.VpcOf(in.subnet) == kubeovnv1.DefaultVpc {
		around.Services, around.Hosts = in.services, r.newHosts(in)
	}
	if problem := validation.Conflict(network.CIDRs, around); problem != nil {
		return checked{}, problem
	}
	if problem := r.linkConflict(in, network.CIDRs); problem != nil {
		return checked{}, problem
	}
	if problem := r.interconnectionInUse(in, features.Interconnection); problem != nil {
		return checked{}, problem
	}
	if problem := r.vipsInUse(in.subnet, features.Vips); problem != nil {
		return checked{}, problem
	}
	return found, r.checkUse(in, network)
}

// parse validates the spec of a subnet by itself.
func parse(s *kubeovnv1.Subnet) (checked, *validation.Problem) {
	network, problem := validation.Subnet(s.Name, &s.Spec)
	if problem == nil {
		problem = validation.Unbuilt(&s.Spec)
	}
	if problem != nil {
		return checked{}, problem
	}
	features, problem := validation.SubnetFeatures(&s.Spec, network)
	for _, vip := range features.Vips { // not allocated to ports automatically
		network.Exclude = append(network.Exclude, ipfamily.Range{From: vip, To: vip})
	}
	network.OwnPorts = translate.OwnPorts(s.Spec.Vlan != "", len(features.Vips))
	return checked{network: network, features: features}, problem
}

// olderPeers returns the overlapping subnets that take precedence over this one, with the CIDRs of their current and their applied specs. A spec that
// this version does not build takes no addresses.
func (r *Reconciler) olderPeers(in inputs) []validation.Peer {
	s := in.subnet
	var peers []validation.Peer
	for _, object := range in.peers {
		for _, peer := range lookup.Specs(object) {
			if validation.Unbuilt(&peer.Spec) != nil {
				continue
			}
			onVlan := peer.Spec.Vlan == s.Spec.Vlan && (s.Spec.Vlan != "" || lookup.VpcOf(peer) == lookup.VpcOf(s))
			routed := peer.Spec.OnRouter() && s.Spec.OnRouter() && lookup.VpcOf(peer) == lookup.VpcOf(s)
			if (onVlan || routed) && r.yields(s, peer, !onVlan) {
				theirs, _ := ipfamily.ParseCIDRs(peer.Spec.CIDRBlock)
				found := validation.Peer{Name: peer.Name, CIDRs: theirs}
				if onVlan {
					found.Vlan = s.Spec.Vlan
				}
				peers = append(peers, found)
			}
		}
	}
	return peers
}

// linkConflict returns a problem if a link between the subnet's VPC and another VPC contains addresses of the subnet. The subnet takes
// precedence over a link that is not applied yet. A link in the VPC's status counts as applied without a port: the database was lost.
func (r *Reconciler) linkConflict(in inputs, cidrs []netip.Prefix) *validation.Problem {
	if in.vpc == nil || len(in.vpc.Spec.VpcPeerings) == 0 || r.hasItsCIDRs(in.subnet, in.subnet.Spec.OnRouter()) {
		return nil
	}
	router, _ := validation.Vpc(in.vpc.Name, &in.vpc.Spec)
	for _, peering := range router.Peerings {
		port := northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.PeerPortRef(in.vpc.Name, peering.Remote))
		stands := port == nil && slices.Contains(in.vpc.Status.VpcPeerings, peering.Remote) || port != nil && hasNetworks(port, peering.Networks())
		if p := validation.LinkConflict(cidrs, peering); p != nil && stands {
			return p
		}
	}
	return nil
}

// yields reports whether peer takes precedence over s when both overlap. A subnet whose CIDRs are applied takes precedence, so that a
// change never breaks a working subnet; otherwise the older subnet does. routed: they conflict on the router.
func (r *Reconciler) yields(s, peer *kubeovnv1.Subnet, routed bool) bool {
	ours, theirs := r.hasItsCIDRs(s, routed), r.hasItsCIDRs(peer, routed)
	if ours != theirs {
		return theirs
	}
	if c := s.CreationTimestamp.Compare(peer.CreationTimestamp.Time); c != 0 {
		return c > 0
	}
	return s.Name > peer.Name
}

// hasItsCIDRs reports whether the CIDRs of a subnet's spec are in its last valid spec, or its router port or, unless routed, the localnet port of
// an underlay subnet has them or is about to get them.
func (r *Reconciler) hasItsCIDRs(s *kubeovnv1.Subnet, routed bool) bool {
	cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	port := northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.RouterPortRef(s.Name))
	switch {
	case err != nil || len(cidrs) == 0:
		return false
	case wasValidWith(s, cidrs, routed):
		return true
	case s.Spec.Vlan != "" && !routed:
		if localnet := r.localnetPort(s.Name); localnet != nil && translate.LocalnetHas(localnet, cidrs) {
			return true
		}
	case port != nil && hasNetworks(port, cidrs):
		return true
	}
	return r.admissions.has(s.Name, cidrs, routed)
}

// wasValidWith reports whether the last valid spec of a subnet has these CIDRs on the VPC and the Vlan of its spec. Unlike the rows, it survives
// the loss of the northbound database.
func wasValidWith(s *kubeovnv1.Subnet, cidrs []netip.Prefix, routed bool) bool {
	last := s.Status.ValidatedSpec
	if last == nil || last.Vlan != s.Spec.Vlan || cmp.Or(last.Vpc, kubeovnv1.DefaultVpc) != lookup.VpcOf(s) || routed && !last.OnRouter() {
		return false
	}
	had, err := ipfamily.ParseCIDRs(last.CIDRBlock)
	return err == nil && slices.Equal(had, cidrs)
}

// hasNetworks reports whether a router port has exactly these networks.
func hasNetworks(port *nb.LogicalRouterPort, cidrs []netip.Prefix) bool {
	return len(port.Networks) == len(cidrs) && !slices.ContainsFunc(port.Networks, func(network string) bool {
		cidr, err := ipfamily.ParseCIDR(network)
		return err != nil || !slices.Contains(cidrs, cidr)
	})
}
