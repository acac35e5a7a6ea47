// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package transit

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation"
)

// inputs is the state from which the gateway router of a VPC is computed.
type inputs struct {
	vpc  *kubeovnv1.Vpc
	join join.Subnet
	// allocation has the address on the join subnet, once there is one.
	allocation ipam.Allocation
	services   []netip.Prefix
	// outgoing are the CIDRs of subnets with natOutgoing, routeTables the tables that subnets use besides the main table.
	outgoing    []netip.Prefix
	routeTables []string
	// routes are the static routes in the spec of the VPC.
	routes []translate.StaticRoute
	// external are the families in which the VPC's router has an external port, through which its default route leads instead of the gateway router.
	external []ipfamily.Family
	// conflict describes the subnet or peering of the VPC that contains an address of the link to the gateway router.
	conflict string
	// before is the pair of nodes in status, pair the chosen one. hops are the addresses of the active node of pair on the join subnet.
	before, pair gateway.Pair
	hops         []netip.Addr
	// lost: the previous active node is down. up: the active node of pair is up.
	lost, up bool
}

// gather reads the inputs. On error, the inputs are incomplete: they serve only to update the status.
func (r *Reconciler) gather(ctx context.Context, vpc *kubeovnv1.Vpc) (inputs, error) {
	in := inputs{vpc: vpc, before: pairOf(vpc), pair: pairOf(vpc)}
	var err error
	if in.join, err = join.Read(ctx, r.Client); err != nil {
		return in, err
	}
	if in.services, err = r.ServiceCIDRs.List(ctx); err != nil {
		return in, err
	}
	subnets, err := r.Networks.ValidSubnetsOf(ctx, vpc.Name)
	if err != nil {
		return in, err
	}
	slices.SortFunc(subnets, func(a, b *kubeovnv1.Subnet) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range subnets {
		in.addSubnet(s)
	}
	slices.Sort(in.routeTables)
	in.routeTables = slices.Compact(in.routeTables)
	in.addRouter()
	return in, r.pick(ctx, &in)
}

// addSubnet adds the CIDRs, the routing table and the conflicts of a subnet with a valid spec.
func (in *inputs) addSubnet(s *kubeovnv1.Subnet) {
	if s.Spec.RouteTable != "" {
		in.routeTables = append(in.routeTables, s.Spec.RouteTable)
	}
	cidrs, _ := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	if s.Spec.NATOutgoing {
		in.outgoing = append(in.outgoing, cidrs...)
	}
	in.checkLink(cidrs, "subnet "+s.Name)
}

// addRouter adds the routes and peerings of the VPC's applied spec.
func (in *inputs) addRouter() {
	router, _ := validation.Vpc(in.vpc.Name, &k8s.AppliedVpc(in.vpc).Spec)
	for _, route := range router.Routes {
		in.routes = append(in.routes, translate.StaticRoute{Prefix: route.Prefix, BySource: route.BySource, NextHop: route.NextHop, Table: route.Table})
	}
	for _, peering := range router.Peerings {
		in.checkLink(peering.Networks(), "the link with VPC "+peering.Remote)
	}
}

func (in *inputs) checkLink(networks []netip.Prefix, whose string) {
	for _, address := range translate.TransitLink() {
		for _, network := range networks {
			if network.Contains(address) && in.conflict == "" {
				in.conflict = fmt.Sprintf("%s (%s) has %s, which leads from the VPC to Services: choose other addresses, or set clusterAccess to None",
					whose, network, address)
			}
		}
	}
}

// externalFamilies returns the families of the external ports of a VPC's router.
func (r *Reconciler) externalFamilies(vpc string) []ipfamily.Family {
	var families []ipfamily.Family
	for _, port := range northbound.Of[nb.LogicalRouterPort](r.Northbound, translate.ExternalOwner(vpc)) {
		for _, network := range port.Networks {
			if p, err := netip.ParsePrefix(network); err == nil {
				families = append(families, ipfamily.Of(p.Addr()))
			}
		}
	}
	slices.Sort(families)
	return slices.Compact(families)
}

// pairOf returns the pair of nodes in the status of a VPC.
func pairOf(vpc *kubeovnv1.Vpc) gateway.Pair {
	if t := vpc.Status.Transit; t != nil {
		return gateway.Pair{Active: t.Node, Standby: t.Standby}
	}
	return gateway.Pair{}
}

// pick chooses the nodes.
func (r *Reconciler) pick(ctx context.Context, in *inputs) error {
	pick, err := r.picker().Pick(ctx, "vpc", in.vpc.Name, in.before, labels.Everything())
	if err != nil {
		return err
	}
	in.pair, in.hops, in.lost, in.up = pick.Pair, pick.Hops, pick.Lost, pick.Up
	return nil
}

func (r *Reconciler) picker() join.Picker {
	return join.Picker{Client: r.Client, Allocator: r.Allocator, Leases: r.Leases}
}
