// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// The names of the ports between routers and switches consist of both names with a dash between them, and the names themselves
// may contain dashes. So subnet `c` of VPC `a-b` and subnet `b-c` of VPC `a` conflict: both need the same port name. The older
// object gets the name. The ports of routers and of switches share one namespace, because ovn-northd puts both into one table.

// subnetPortNames returns the port names that a subnet needs, by its current and its applied spec.
func subnetPortNames(o client.Object) []string {
	var names []string
	for _, s := range Specs(o.(*kubeovnv1.Subnet)) {
		names = append(names, routerPortNames(s)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// routerPortNames returns the names of the router's port to a subnet, and of the subnet's port to the router.
func routerPortNames(s *kubeovnv1.Subnet) []string {
	return []string{VpcOf(s) + "-" + s.Name, s.Name + "-" + VpcOf(s)}
}

// vpcPortNames returns the port names that a VPC needs for its peers and external subnets, by its current and its applied spec.
func vpcPortNames(o client.Object) []string {
	var names []string
	for _, remote := range peersOf(o) {
		names = append(names, peerPortName(o.GetName(), remote))
	}
	for _, subnet := range ExternalOf(o.(*kubeovnv1.Vpc)) {
		names = append(names, externalPortNames(o.GetName(), subnet)...)
	}
	return names
}

func peerPortName(vpc, remote string) string { return vpc + "-" + remote }

// PortNameTaken reports whether an older object than this Subnet or Vpc needs one of these port names.
func (n *Networks) PortNameTaken(ctx context.Context, o client.Object, names ...string) (bool, error) {
	claimants, err := n.claimants(ctx, names)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(claimants, func(c client.Object) bool { return c.GetUID() != o.GetUID() && Precedes(c, o) }), nil
}

// SubnetNameTaken is PortNameTaken for the two ports between a subnet and its VPC's router.
func (n *Networks) SubnetNameTaken(ctx context.Context, s *kubeovnv1.Subnet) (bool, error) {
	return n.PortNameTaken(ctx, s, routerPortNames(s)...)
}

// PeerNameTaken is PortNameTaken for a VPC's port to a peer.
func (n *Networks) PeerNameTaken(ctx context.Context, vpc *kubeovnv1.Vpc, remote string) (bool, error) {
	return n.PortNameTaken(ctx, vpc, peerPortName(vpc.Name, remote))
}

// PortNameConflicts returns the Subnets and Vpcs that need a port name of this Subnet or Vpc, including the object itself.
func (n *Networks) PortNameConflicts(ctx context.Context, o client.Object) ([]client.Object, error) {
	switch o := o.(type) {
	case *kubeovnv1.Subnet:
		return n.claimants(ctx, subnetPortNames(o))
	case *kubeovnv1.Vpc:
		return n.claimants(ctx, vpcPortNames(o))
	}
	return nil, nil
}

func (n *Networks) claimants(ctx context.Context, names []string) ([]client.Object, error) {
	var claimants []client.Object
	for _, name := range names {
		var subnets kubeovnv1.SubnetList
		var vpcs kubeovnv1.VpcList
		for _, list := range []client.ObjectList{&subnets, &vpcs} {
			if err := n.reader.List(ctx, list, client.MatchingFields{indexPortNames: name}, client.UnsafeDisableDeepCopy); err != nil {
				return nil, fmt.Errorf("list the objects with port name %s: %w", name, err)
			}
		}
		for i := range subnets.Items {
			claimants = append(claimants, &subnets.Items[i])
		}
		for i := range vpcs.Items {
			claimants = append(claimants, &vpcs.Items[i])
		}
	}
	return claimants, nil
}

// SameName returns the Vpc with the name of a Subnet, or the Subnet with the name of a Vpc; nil if it does not exist.
func (n *Networks) SameName(ctx context.Context, o client.Object) (client.Object, error) {
	var other client.Object = &kubeovnv1.Vpc{}
	if _, ok := o.(*kubeovnv1.Vpc); ok {
		other = &kubeovnv1.Subnet{}
	}
	err := n.reader.Get(ctx, client.ObjectKeyFromObject(o), other, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("look for another object named %s: %w", o.GetName(), err)
	}
	if err != nil {
		return nil, nil
	}
	return other, nil
}
