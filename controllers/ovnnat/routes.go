// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation"
)

// hops sets the next hops of pairs whose packets need a policy of the rule: in the default VPC, whose policies for nodes precede routes, and in a custom VPC with several
// external subnets, or whose default route leads elsewhere. Packets of a source, or answers of a port, that rules translate in several external subnets leave by the first one. It
// returns the networks whose routes decide instead.
func (r *controller) hops(ctx context.Context, rule *lookup.NATRule, spec lookup.NATSpec, vpcName, name string, pairs []translate.NATPair) ([]netip.Prefix, error) {
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get subnet %s: %w", name, err)
	}
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, r.Client, client.ObjectKey{Name: vpcName}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get VPC %s: %w", vpcName, err)
	}
	if subnet == nil || vpc == nil {
		return nil, nil
	}
	applied := k8s.Applied(subnet)
	gateways, _ := ipfamily.ParseAddrs(applied.Spec.Gateway)
	routes, connected := routesOf(vpc), lookup.ConnectedSubnets(vpc)
	for i := range pairs {
		family := ipfamily.Of(pairs[i].External)
		hop := slices.IndexFunc(gateways, func(a netip.Addr) bool { return ipfamily.Of(a) == family })
		if hop < 0 {
			continue
		}
		through := defaults(routes)
		if route := northbound.Get[nb.LogicalRouterStaticRoute](r.Northbound, translate.ExternalRouteRef(vpcName, family)); route != nil {
			through = append(through, ipfamily.ValidAddrs(route.Nexthop)...)
		}
		routed := slices.ContainsFunc(through, func(a netip.Addr) bool {
			return lookup.Overlaps(applied, ipfamily.Hosts([]netip.Addr{a})) && ipfamily.Of(a) == family
		})
		if vpcName != kubeovnv1.DefaultVpc && len(connected) < 2 && routed {
			continue
		}
		inside := lookup.SourceText(pairs[i].Internal)
		if spec.Protocol != "" {
			inside = lookup.PortText(string(spec.Protocol), inside, spec.InternalPort)
		}
		elsewhere, err := r.Networks.Translated(ctx, rule, vpcName, inside, connected[:max(slices.Index(connected, name), 0)])
		if err != nil {
			return nil, err
		}
		if elsewhere {
			continue
		}
		pairs[i].NextHop = gateways[hop]
	}
	return translate.Routed(vpcName, routes), nil
}

// routesOf returns the routes in the spec of a VPC.
func routesOf(vpc *kubeovnv1.Vpc) []translate.StaticRoute {
	router, _ := validation.Vpc(vpc.Name, &k8s.AppliedVpc(vpc).Spec)
	var routes []translate.StaticRoute
	for _, route := range router.Routes {
		routes = append(routes, translate.StaticRoute{Prefix: route.Prefix, BySource: route.BySource, NextHop: route.NextHop, Table: route.Table})
	}
	return routes
}

// defaults returns the next hops of default routes in the main table.
func defaults(routes []translate.StaticRoute) []netip.Addr {
	var hops []netip.Addr
	for _, route := range routes {
		if route.Prefix.Bits() == 0 && !route.BySource && route.Table == "" {
			hops = append(hops, route.NextHop)
		}
	}
	return hops
}

// exits returns the external subnets of a VPC, with the routers there to which routes of the user lead that precede the policies of rules; nil for a VPC with fewer than two.
func (r *controller) exits(ctx context.Context, vpcName string) ([]validation.Exit, error) {
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, r.Client, client.ObjectKey{Name: vpcName}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get VPC %s: %w", vpcName, err)
	}
	if vpc == nil || len(lookup.ConnectedSubnets(vpc)) < 2 {
		return nil, nil
	}
	var hops []netip.Addr
	for _, route := range routesOf(vpc) {
		if len(translate.Routed(vpcName, []translate.StaticRoute{route})) > 0 {
			hops = append(hops, route.NextHop)
		}
	}
	router, _ := validation.Vpc(vpcName, &k8s.AppliedVpc(vpc).Spec)
	for _, policy := range router.Policies {
		if policy.Priority >= translate.PriorityRouted {
			hops = append(hops, policy.NextHops...)
		}
	}
	var exits []validation.Exit
	for _, name := range lookup.ConnectedSubnets(vpc) {
		subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get subnet %s: %w", name, err)
		}
		exit := validation.Exit{Subnet: name}
		for _, hop := range hops {
			if subnet != nil && lookup.Overlaps(k8s.Applied(subnet), ipfamily.Hosts([]netip.Addr{hop})) {
				exit.Hops = append(exit.Hops, hop)
			}
		}
		exits = append(exits, exit)
	}
	return exits, nil
}
