// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// check parses the spec of in.vpc, and collects its problems: its own, and conflicts with other objects.
func (r *Reconciler) check(ctx context.Context, in inputs) (translate.VpcInputs, result, error) {
	router, problems := validation.Vpc(in.vpc.Name, &in.vpc.Spec)
	found := result{problems: problems}
	for _, step := range []func(context.Context, inputs, *result) error{r.checkNamespaces, r.checkDefaultSubnet} {
		if err := step(ctx, in, &found); err != nil {
			return translate.VpcInputs{}, result{}, err
		}
	}
	links, err := r.links(ctx, in, router.Peerings, &found)
	if err != nil {
		return translate.VpcInputs{}, result{}, err
	}
	if err := r.checkNextHops(ctx, in, router, links, &found); err != nil {
		return translate.VpcInputs{}, result{}, err
	}
	return routerOf(in, router, links), found, nil
}

// routerOf returns the inputs of the router's rows. Routes whose next hop is in no network are included: OVN ignores such a route until
// the network exists.
func routerOf(in inputs, router validation.Router, links []translate.Peering) translate.VpcInputs {
	out := translate.VpcInputs{Name: in.vpc.Name, RouteTables: in.routeTables(), Peerings: links}
	for _, route := range router.Routes {
		out.Routes = append(out.Routes, translate.StaticRoute{
			Prefix:         route.Prefix,
			BySource:       route.BySource,
			NextHop:        route.NextHop,
			Table:          route.Table,
			SymmetricReply: route.SymmetricReply,
			Monitored:      route.Monitored,
		})
	}
	for _, policy := range router.Policies {
		out.Policies = append(out.Policies, translate.PolicyRoute{
			Priority: policy.Priority, Match: policy.Match, Action: policy.Action, NextHops: policy.NextHops,
		})
	}
	return out
}

// checkNamespaces finds namespaces that an older VPC lists.
func (r *Reconciler) checkNamespaces(ctx context.Context, in inputs, found *result) error {
	for _, namespace := range in.vpc.Spec.Namespaces {
		listing, err := r.Namespaces.Listing(ctx, namespace)
		if err != nil {
			return err
		}
		if len(listing) > 0 && listing[0].Name != in.vpc.Name {
			found.conflicts = append(found.conflicts, validation.ConflictingNamespace(namespace, listing[0].Name))
		}
	}
	return nil
}

// checkDefaultSubnet finds a default subnet that does not exist, or belongs to another VPC.
func (r *Reconciler) checkDefaultSubnet(ctx context.Context, in inputs, found *result) error {
	name := in.vpc.Spec.DefaultSubnet
	if name == "" {
		return nil
	}
	subnet, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
	switch {
	case err != nil:
		return fmt.Errorf("get subnet %s: %w", name, err)
	case subnet == nil:
		found.missing = append(found.missing, validation.NoDefaultSubnet(name))
	case lookup.VpcOf(k8s.Applied(subnet)) != in.vpc.Name:
		found.conflicts = append(found.conflicts, validation.ForeignDefaultSubnet(name, lookup.VpcOf(k8s.Applied(subnet))))
	}
	return nil
}

// checkNextHops finds next hops that are in none of the router's networks, and routes with bfdId by next hops that are in no external subnet.
func (r *Reconciler) checkNextHops(ctx context.Context, in inputs, router validation.Router, links []translate.Peering, found *result) error {
	seen := map[netip.Addr]bool{}
	check := func(field string, index int, hop netip.Addr) error {
		reachable, known := seen[hop]
		if !known {
			var err error
			if reachable, err = r.reaches(ctx, in.vpc, links, hop); err != nil {
				return err
			}
			seen[hop] = reachable
		}
		if !reachable {
			found.missing = append(found.missing, validation.Unreachable(field, index, hop))
		}
		return nil
	}
	for _, route := range router.Routes {
		if err := check("staticRoutes", route.Index, route.NextHop); err != nil {
			return err
		}
		if !route.Monitored {
			continue
		}
		outside, err := r.outside(ctx, in.vpc, route.NextHop)
		if err != nil {
			return err
		}
		if !outside {
			found.unmonitored = append(found.unmonitored, route)
		}
	}
	for _, policy := range router.Policies {
		for _, hop := range policy.NextHops {
			if err := check("policyRoutes", policy.Index, hop); err != nil {
				return err
			}
		}
	}
	return nil
}

// reaches reports whether an address is in a subnet of the VPC, on one of its links, or in an external subnet that it names.
func (r *Reconciler) reaches(ctx context.Context, vpc *kubeovnv1.Vpc, links []translate.Peering, hop netip.Addr) (bool, error) {
	for _, link := range links {
		if slices.ContainsFunc(link.Addresses, func(p netip.Prefix) bool { return p.Contains(hop) }) {
			return true, nil
		}
	}
	at := []netip.Prefix{netip.PrefixFrom(hop, hop.BitLen())}
	subnets, err := r.Networks.Overlapping(ctx, vpc.Name, at)
	if err != nil || len(subnets) > 0 {
		return len(subnets) > 0, err
	}
	return r.outside(ctx, vpc, hop)
}

// outside reports whether an address is in an external subnet that the VPC names.
func (r *Reconciler) outside(ctx context.Context, vpc *kubeovnv1.Vpc, hop netip.Addr) (bool, error) {
	subnets, err := r.Networks.Overlapping(ctx, kubeovnv1.DefaultVpc, []netip.Prefix{netip.PrefixFrom(hop, hop.BitLen())})
	return slices.ContainsFunc(subnets, func(s *kubeovnv1.Subnet) bool { return slices.Contains(lookup.ExternalOf(vpc), s.Name) }), err
}
