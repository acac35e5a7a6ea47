// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
)

// inputs are the inputs of a VPC's router and status.
type inputs struct {
	vpc *kubeovnv1.Vpc
	// subnets are the subnets whose current or applied spec names the VPC, by name. Do not change them.
	subnets []kubeovnv1.Subnet
	// applied are the subnets whose applied spec names it, with that spec.
	applied []*kubeovnv1.Subnet
	// join is the one of them that connects the nodes, nil if it is of another VPC.
	join *kubeovnv1.Subnet
	// namesake is the subnet with the VPC's name, nil if there is none.
	namesake client.Object
}

// gather reads the inputs from the cache. vpc is nil if the object does not exist.
func (r *Reconciler) gather(ctx context.Context, name string) (inputs, error) {
	vpc, err := k8s.Find[kubeovnv1.Vpc](ctx, r.Client, client.ObjectKey{Name: name})
	if err != nil {
		return inputs{}, fmt.Errorf("get it: %w", err)
	}
	in := inputs{vpc: vpc}
	if vpc != nil {
		if in.namesake, err = r.Networks.SameName(ctx, vpc); err != nil {
			return inputs{}, err
		}
	}
	if in.subnets, err = r.Networks.SubnetsOf(ctx, name); err != nil {
		return inputs{}, err
	}
	slices.SortFunc(in.subnets, func(a, b kubeovnv1.Subnet) int { return cmp.Compare(a.Name, b.Name) })
	for i := range in.subnets {
		s := k8s.Applied(&in.subnets[i])
		if lookup.VpcOf(s) != name {
			continue
		}
		if in.applied = append(in.applied, s); s.Name == kubeovnv1.JoinSubnet {
			in.join = s
		}
	}
	return in, nil
}

// misnamed reports whether an older subnet has the VPC's name.
func (in inputs) misnamed() bool {
	return in.namesake != nil && lookup.Precedes(in.namesake, in.vpc)
}

// subnetNames returns the sorted names of the VPC's subnets.
func (in inputs) subnetNames() []string {
	names := make([]string, 0, len(in.subnets))
	for i := range in.subnets {
		names = append(names, in.subnets[i].Name)
	}
	return names
}

// routeTables returns the sorted route tables, except the main one, that the router's ports to the VPC's subnets use.
func (in inputs) routeTables() []string {
	var tables []string
	for _, s := range in.applied {
		if table := s.Spec.RouteTable; table != "" {
			tables = append(tables, table)
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// nextHops returns the gateways in the last valid spec of the join subnet; none if the VPC has no such subnet. known is false while there is no
// such spec.
func nextHops(join *kubeovnv1.Subnet) (hops []netip.Addr, known bool) {
	if join == nil {
		return nil, true
	}
	spec := k8s.ValidSpec(join)
	if spec == nil {
		return nil, false
	}
	hops, err := ipfamily.ParseAddrs(spec.Gateway)
	return hops, err == nil
}
