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
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/validation"
)

// links returns this VPC's ends of the valid links that both sides request.
func (r *Reconciler) links(ctx context.Context, in inputs, peerings []validation.Peering, found *result) ([]translate.Peering, error) {
	var links []translate.Peering
	for _, peering := range peerings {
		link, problem, err := r.link(ctx, in, peering)
		if err == nil && problem == nil {
			if overlap, err := r.overlap(ctx, in, peering); err != nil {
				return nil, err
			} else if overlap != nil { // unlike the others, it is a problem of this VPC's spec alone
				found.problems = append(found.problems, overlap)
				continue
			}
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("link with VPC %s: %w", peering.Remote, err)
		case problem == nil:
			links = append(links, link)
			found.linked = append(found.linked, peering.Remote)
		case problem.Reason == validation.ReasonPeerMissing:
			found.missing = append(found.missing, problem)
		default:
			found.conflicts = append(found.conflicts, problem)
		}
	}
	slices.Sort(found.linked)
	return links, nil
}

func (r *Reconciler) link(ctx context.Context, in inputs, peering validation.Peering) (translate.Peering, *validation.Problem, error) {
	remote, err := k8s.Find[kubeovnv1.Vpc](ctx, r.Client, client.ObjectKey{Name: peering.Remote}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return translate.Peering{}, nil, fmt.Errorf("get it: %w", err)
	}
	if remote == nil {
		return translate.Peering{}, validation.OneSided(in.vpc.Name, peering, false), nil
	}
	theirs, _ := validation.Vpc(remote.Name, &k8s.AppliedVpc(remote).Spec)
	back := slices.IndexFunc(theirs.Peerings, func(p validation.Peering) bool { return p.Remote == in.vpc.Name })
	if back < 0 {
		return translate.Peering{}, validation.OneSided(in.vpc.Name, peering, true), nil
	}
	if problem := validation.Link(peering, theirs.Peerings[back]); problem != nil {
		return translate.Peering{}, problem, nil
	}
	link := translate.Peering{Remote: peering.Remote, Addresses: peering.Addresses}
	if link.NameTaken, err = r.Networks.PeerNameTaken(ctx, in.vpc, remote.Name); err != nil {
		return translate.Peering{}, nil, err
	}
	link.RemoteNameTaken, err = r.Networks.PeerNameTaken(ctx, remote, in.vpc.Name)
	return link, nil, err
}

// overlap returns a problem if a subnet of the VPC overlaps the link's networks. An existing link has precedence over the subnet.
func (r *Reconciler) overlap(ctx context.Context, in inputs, peering validation.Peering) (*validation.Problem, error) {
	subnets, err := r.Networks.Overlapping(ctx, in.vpc.Name, peering.Networks())
	if err != nil || len(subnets) == 0 || r.stands(in.vpc, peering) {
		return nil, err
	}
	return validation.PeeringOverlap(peering, subnets[0].Name, subnets[0].Spec.CIDRBlock), nil
}

// stands reports whether the router already has the link's port with these addresses, or had it before the northbound database was lost.
func (r *Reconciler) stands(vpc *kubeovnv1.Vpc, peering validation.Peering) bool {
	port := northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.PeerPortRef(vpc.Name, peering.Remote))
	if port == nil {
		return wasLinked(vpc, peering)
	}
	return len(port.Networks) == len(peering.Addresses) &&
		!slices.ContainsFunc(peering.Addresses, func(a netip.Prefix) bool { return !slices.Contains(port.Networks, a.String()) })
}

// wasLinked reports whether the status has the link, and the last valid spec has these addresses.
func wasLinked(vpc *kubeovnv1.Vpc, peering validation.Peering) bool {
	if vpc.Status.ValidatedSpec == nil || !slices.Contains(vpc.Status.VpcPeerings, peering.Remote) {
		return false
	}
	last, _ := validation.Vpc(vpc.Name, vpc.Status.ValidatedSpec)
	return slices.ContainsFunc(last.Peerings, func(p validation.Peering) bool {
		return p.Remote == peering.Remote && slices.Equal(p.Addresses, peering.Addresses)
	})
}
