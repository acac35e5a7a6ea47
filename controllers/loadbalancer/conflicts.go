// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/lookup"
)

// conflict is an object to which an address belongs. The zero value is none.
type conflict struct {
	with string
	// last is the last address of the object's block.
	last netip.Addr
}

// conflict returns the object, other than a Service, to which an address belongs.
func (r *Reconciler) conflict(ctx context.Context, a netip.Addr) (conflict, error) {
	host := []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
	if !a.IsGlobalUnicast() {
		return conflict{"no host: it is not a unicast address", a}, nil
	}
	if with := r.Pools.host(a); with != "" {
		return conflict{with, a}, nil
	}
	subnets, err := r.Networks.Overlapping(ctx, kubeovnv1.DefaultVpc, host)
	if err != nil {
		return conflict{}, err
	}
	for _, object := range subnets {
		for _, s := range lookup.Specs(object) {
			cidrs, _ := ipfamily.ParseCIDRs(s.Spec.CIDRBlock) // the condition of the Subnet reports an error
			for _, cidr := range cidrs {
				if cidr.Contains(a) && lookup.VpcOf(s) == kubeovnv1.DefaultVpc {
					return conflict{"Subnet " + s.Name, ipfamily.LastAddr(cidr)}, nil
				}
			}
		}
	}
	cidrs, err := r.ServiceCIDRs.List(ctx)
	if err != nil {
		return conflict{}, err
	}
	for _, cidr := range cidrs {
		if cidr.Contains(a) {
			return conflict{"the ClusterIPs " + cidr.String(), ipfamily.LastAddr(cidr)}, nil
		}
	}
	hosts, err := r.Networks.HostsIn(ctx, host)
	if err != nil {
		return conflict{}, err
	}
	if hosts[a] == lookup.HostAPIServer {
		return conflict{lookup.HostAPIServer, a}, nil
	}
	egress, err := r.Networks.EgressIn(ctx, host)
	if err != nil {
		return conflict{}, err
	}
	if len(egress) > 0 {
		return conflict{"EgressAddress " + egress[0].Name, a}, nil
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.MatchingFields{indexNode: a.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return conflict{}, fmt.Errorf("list nodes by address: %w", err)
	}
	if len(nodes.Items) > 0 {
		return conflict{"node " + nodes.Items[0].Name, a}, nil
	}
	return conflict{}, nil
}

// requestedBy returns another Service that has or requests an address.
func (r *Reconciler) requestedBy(ctx context.Context, a netip.Addr, s *corev1.Service) (conflict, error) {
	others, err := r.Services.At(ctx, a)
	if err != nil {
		return conflict{}, err
	}
	for _, o := range others {
		if client.ObjectKeyFromObject(o) != client.ObjectKeyFromObject(s) {
			return conflict{"another Service", a}, nil
		}
	}
	return conflict{}, nil
}
