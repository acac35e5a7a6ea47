// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

func vpcOf(s *kubeovnv1.Subnet) string { return lookup.VpcOf(s) }

// anyMAC is the hardware address in rows for which it decides nothing.
var anyMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// network adds the rows of a VPC once: its router, its switches, and what leads out of it.
func (w *walk) network(vpc string) {
	if w.loaded[vpc] || vpc == "" {
		return
	}
	w.loaded[vpc] = true
	var subnets []*kubeovnv1.Subnet
	for _, s := range w.s.Subnets {
		if valid := k8s.WithValidSpec(s); valid != nil && vpcOf(valid) == vpc && lookup.OnNetwork(valid, kubeovnv1.ProviderOVN) {
			subnets = append(subnets, valid)
		}
	}
	subnets = slices.Concat(subnets, w.remembered(vpc, subnets))
	var tables []string
	for _, s := range subnets {
		w.addSubnet(vpc, s)
		if s.Spec.RouteTable != "" && !slices.Contains(tables, s.Spec.RouteTable) {
			tables = append(tables, s.Spec.RouteTable)
		}
	}
	router, _ := validation.Vpc(vpc, w.vpcSpec(vpc))
	in := translate.VpcInputs{Name: vpc, RouteTables: tables}
	for _, r := range router.Routes {
		in.Routes = append(in.Routes, translate.StaticRoute{Prefix: r.Prefix, BySource: r.BySource, NextHop: r.NextHop, Table: r.Table, SymmetricReply: r.SymmetricReply, Monitored: r.Monitored})
	}
	for _, r := range router.Policies {
		in.Policies = append(in.Policies, translate.PolicyRoute{Priority: r.Priority, Match: r.Match, Action: r.Action, NextHops: r.NextHops})
	}
	for _, p := range router.Peerings {
		if w.linkProblem(vpc, p) == nil {
			in.Peerings = append(in.Peerings, translate.Peering{Remote: p.Remote, Addresses: p.Addresses})
		}
	}
	if vpc == kubeovnv1.DefaultVpc {
		in.DefaultNextHops = w.s.joinGateways()
		w.addNodes()
		for _, s := range subnets {
			w.addGateway(s)
		}
		w.addEgress()
	}
	w.m.add(translate.VpcOwner(vpc), w.usedRoutes(vpc, translate.Vpc(in)))
	external := w.externalPorts(vpc)
	w.addTransit(vpc, subnets, tables, in.Routes, externalFamilies(vpc, external))
	w.addExternal(vpc, external, tables, in.Routes)
}

func (w *walk) vpcSpec(vpc string) *kubeovnv1.VpcSpec {
	if v := w.s.vpc(vpc); v != nil {
		return &v.Spec
	}
	return &kubeovnv1.VpcSpec{}
}

// remembered are the subnets of both ends as the annotations of pods have them, for users who may not read Subnets.
func (w *walk) remembered(vpc string, known []*kubeovnv1.Subnet) []*kubeovnv1.Subnet {
	if w.s.unread(ResourceSubnets, "") == nil {
		return nil
	}
	var subnets []*kubeovnv1.Subnet
	for _, h := range []host{w.from, w.to} {
		if h.kind != aPod || h.net.LogicalRouter != vpc || slices.ContainsFunc(slices.Concat(known, subnets), func(s *kubeovnv1.Subnet) bool { return s.Name == h.net.LogicalSwitch }) {
			continue
		}
		s := &kubeovnv1.Subnet{}
		s.Name, s.Spec.Vpc, s.Spec.CIDRBlock, s.Spec.Gateway = h.net.LogicalSwitch, vpc, ipfamily.Join(h.net.CIDRs), ipfamily.Join(h.net.Gateways)
		if h.net.ProviderNetwork != "" {
			s.Spec.Vlan = h.net.ProviderNetwork
		}
		subnets = append(subnets, s)
	}
	return subnets
}

func (w *walk) addSubnet(vpc string, s *kubeovnv1.Subnet) {
	network, problem := validation.Subnet(s.Name, &s.Spec)
	if problem != nil {
		return
	}
	features, problem := validation.SubnetFeatures(&s.Spec, network)
	if problem != nil {
		return
	}
	in := translate.SubnetInputs{
		Name: s.Name, Vpc: vpc, CIDRs: network.CIDRs, Gateways: network.Gateways, RouteTable: s.Spec.RouteTable, Private: s.Spec.Private,
		AllowSubnets: features.AllowSubnets, ACLs: s.Spec.ACLs, AllowEWTraffic: s.Spec.AllowEWTraffic, Services: k8s.ServesServices(s),
	}
	if join := w.s.subnet(kubeovnv1.JoinSubnet); join != nil && join.Name != s.Name && vpcOf(join) == vpc {
		in.NodeCIDRs, _ = ipfamily.ParseCIDRs(join.Spec.CIDRBlock)
	}
	if s.Spec.PhysicalGateway() {
		in.Localnet = &translate.Localnet{Network: s.Spec.Vlan}
	}
	w.m.add(translate.SubnetOwner(s.Name), translate.Subnet(in))
}

func (w *walk) addNodes() {
	for _, name := range w.s.nodeNames() {
		own, join := w.s.nodeAddresses(name)
		if len(join) > 0 {
			w.m.add(translate.NodeOwner(name), translate.Node(translate.NodeInputs{
				Name: name, Vpc: kubeovnv1.DefaultVpc, Switch: kubeovnv1.JoinSubnet, MAC: anyMAC, Addresses: join, InternalIPs: own,
			}))
		}
	}
}

// addGateway adds the policies of a centralized gateway, with the nodes that carry the traffic according to the Subnet's status.
func (w *walk) addGateway(s *kubeovnv1.Subnet) {
	if !gateway.Centralized(s) {
		return
	}
	cidrs, _ := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	in := translate.GatewayInputs{Vpc: vpcOf(s), CIDRs: cidrs}
	for _, node := range activeNodes(s) {
		_, join := w.s.nodeAddresses(node)
		in.NextHops = append(in.NextHops, join...)
	}
	w.m.add(translate.GatewayOwner(s.Name), translate.Gateway(in))
}

func activeNodes(s *kubeovnv1.Subnet) []string {
	var nodes []string
	for node := range strings.SplitSeq(s.Status.ActivateGateway, ",") {
		if node = strings.TrimSpace(node); node != "" {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// clusterAccess returns the applied access of a custom VPC.
func (w *walk) clusterAccess(vpc string) kubeovnv1.ClusterAccess {
	access := w.vpcSpec(vpc).ClusterAccess
	if w.s.Cluster != nil {
		access = cmp.Or(access, w.s.Cluster.Spec.Tenancy.ClusterAccess)
	}
	return cmp.Or(access, kubeovnv1.ClusterAccessNone)
}

func (w *walk) addTransit(vpc string, subnets []*kubeovnv1.Subnet, tables []string, routes []translate.StaticRoute, external []ipfamily.Family) {
	object := w.s.vpc(vpc)
	if vpc == kubeovnv1.DefaultVpc || object == nil || object.Status.Transit == nil || w.clusterAccess(vpc) != kubeovnv1.ClusterAccessServices {
		return
	}
	transit := object.Status.Transit
	in := translate.TransitInputs{
		Vpc: vpc, Node: transit.Node, Addresses: ipfamily.ValidAddrs(transit.Addresses...), MAC: anyMAC, Services: w.s.ServiceCIDRs, RouteTables: tables, Routes: routes,
		External: external,
	}
	_, in.NextHops = w.s.nodeAddresses(transit.Node)
	for _, s := range subnets {
		if s.Spec.NATOutgoing {
			cidrs, _ := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
			in.Outgoing = append(in.Outgoing, cidrs...)
		}
	}
	w.m.add(translate.TransitOwner(vpc), translate.Transit(in))
}

// linkProblem says why a link of a VPC is not set up; nil if it is.
func (w *walk) linkProblem(vpc string, p validation.Peering) *validation.Problem {
	remote := w.s.vpc(p.Remote)
	if remote == nil {
		return validation.OneSided(vpc, p, false)
	}
	theirs, _ := validation.Vpc(remote.Name, &remote.Spec)
	back := slices.IndexFunc(theirs.Peerings, func(other validation.Peering) bool { return other.Remote == vpc })
	if back < 0 {
		return validation.OneSided(vpc, p, true)
	}
	return validation.Link(p, theirs.Peerings[back])
}

// link says why there is no link between two VPCs, and what to change.
func (w *walk) link(vpc, remote string) (object *Object, why, change string) {
	for _, side := range [][2]string{{vpc, remote}, {remote, vpc}} {
		router, _ := validation.Vpc(side[0], w.vpcSpec(side[0]))
		for _, p := range router.Peerings {
			if p.Remote != side[1] {
				continue
			}
			if problem := w.linkProblem(side[0], p); problem != nil {
				return &Object{Kind: translate.KindVpc, Name: side[0], Rule: fmt.Sprintf("vpcPeerings[%d]", p.Index)}, problem.Message,
					"add the entry of vpcPeerings that Vpc " + side[1] + " lacks, or correct it"
			}
		}
	}
	return nil, "", ""
}
