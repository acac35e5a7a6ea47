// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/svc"
)

// Views of other objects that can have an address of an EgressAddress.

func viewBalancer(s *corev1.Service) string { return ipfamily.Join(svc.LoadBalancerAddresses(s)) }

func viewSources(s *kubeovnv1.Subnet) string { return ipfamily.Join(lookup.Sources(s)) }

func (r *Reconciler) onService(ctx context.Context, o client.Object) []reconcile.Request {
	return r.having(ctx, svc.LoadBalancerAddresses(o.(*corev1.Service)))
}

func (r *Reconciler) onSources(ctx context.Context, o client.Object) []reconcile.Request {
	return r.having(ctx, lookup.Sources(o.(*kubeovnv1.Subnet)))
}

// having returns the EgressAddresses with one of the addresses.
func (r *Reconciler) having(ctx context.Context, addresses []netip.Addr) []reconcile.Request {
	var texts []string
	for _, address := range addresses {
		texts = append(texts, address.String())
	}
	return r.at(ctx, texts...)
}

// excludedIn returns the EgressAddresses with addresses that a subnet excludes: they conflict with allocations on request.
func (r *Reconciler) excludedIn(subnet string) []string {
	ctx := context.Background() // reads from the cache
	s, err := k8s.Find[kubeovnv1.Subnet](ctx, r.Client, client.ObjectKey{Name: subnet}, client.UnsafeDisableDeepCopy)
	if err != nil || s == nil || len(k8s.Applied(s).Spec.ExcludeIPs) == 0 || !k8s.Applied(s).Spec.PhysicalGateway() {
		return nil
	}
	cidrs, _ := ipfamily.ParseCIDRs(k8s.Applied(s).Spec.CIDRBlock)
	list, err := r.Networks.EgressIn(ctx, cidrs)
	if err != nil {
		return nil // the cache is stopping
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	return names
}
