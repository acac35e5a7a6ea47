// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/svc"
)

// Indexes of the cache.
const (
	indexClass = "loadbalancer.class" // Services with a class, or with the condition of this controller
	hasClass   = "true"
	indexNode  = "loadbalancer.node" // nodes by their addresses
)

// SetupWithManager registers the reconciler. Its sources are the Service, the pools, and the objects with which addresses can conflict: other
// Services, Subnets, nodes, ServiceCIDRs, EgressAddresses and the API server.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	r.holders = newHolders()
	r.export()
	err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Service{}, indexClass, func(o client.Object) []string {
		if s := o.(*corev1.Service); balances(s) || marked(s) {
			return []string{hasClass}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index Services by class: %w", err)
	}
	err = mgr.GetFieldIndexer().IndexField(ctx, &corev1.Node{}, indexNode, func(o client.Object) []string {
		var texts []string
		for _, a := range nodeIPs(o.(*corev1.Node)) {
			texts = append(texts, a.String())
		}
		return texts
	})
	if err != nil {
		return fmt.Errorf("index nodes by address: %w", err)
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("loadbalancer")
	if r.ServiceCIDRs.Served() {
		b = b.Watches(&networkingv1.ServiceCIDR{}, handler.EnqueueRequestsFromMapFunc(all), builder.WithPredicates(k8s.ComesOrGoes))
	}
	return b.
		For(&corev1.Service{}).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(r.besideService), builder.WithPredicates(k8s.Changed(viewService))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(all), builder.WithPredicates(k8s.Changed(viewSubnet))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.atNode), builder.WithPredicates(k8s.Changed(viewNode))).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.atAPIServer), builder.WithPredicates(predicate.NewPredicateFuncs(lookup.IsOfAPIServer))).
		Watches(&kubeovnv1.EgressAddress{}, handler.EnqueueRequestsFromMapFunc(r.atEgress), builder.WithPredicates(k8s.Changed(k8s.ViewAddressesOfEgress))).
		WatchesRawSource(&r.requests).
		WatchesRawSource(&r.Pools.changed).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

func viewService(s *corev1.Service) string { return ipfamily.Join(svc.RequestedAddresses(s)) }

func viewSubnet(s *kubeovnv1.Subnet) [4]string {
	applied := k8s.Applied(s)
	return [4]string{s.Spec.CIDRBlock, s.Spec.Vpc, applied.Spec.CIDRBlock, applied.Spec.Vpc}
}

// maxNodeIPs is how many addresses of a family in a node's status are not assigned.
const maxNodeIPs = 4

// nodeIPs returns the addresses of a node that are not assigned. A stolen node can list addresses of a pool in its status: the first few of each family
// count, so that it cannot exhaust the pool.
func nodeIPs(n *corev1.Node) []netip.Addr {
	var counts [2]int
	return slices.DeleteFunc(k8s.StatusIPs(n), func(a netip.Addr) bool {
		counts[ipfamily.Of(a)]++
		return counts[ipfamily.Of(a)] > maxNodeIPs
	})
}

func viewNode(n *corev1.Node) string { return ipfamily.Join(nodeIPs(n)) }

// all enqueues all Services with a class.
func all(context.Context, client.Object) []reconcile.Request {
	return []reconcile.Request{k8s.RequestOf(everyService)}
}

// besideService enqueues the Services that wait for addresses when another Service may release one.
func (r *Reconciler) besideService(_ context.Context, o client.Object) []reconcile.Request {
	s := o.(*corev1.Service)
	if r.concerns(s) || !r.Pools.contain(svc.RequestedAddresses(s)) {
		return nil
	}
	return requestsOf(r.holders.freed())
}

func (r *Reconciler) atNode(_ context.Context, o client.Object) []reconcile.Request {
	return r.at(nodeIPs(o.(*corev1.Node)))
}

func (r *Reconciler) atAPIServer(_ context.Context, o client.Object) []reconcile.Request {
	return r.at(lookup.EndpointAddresses(o.(*discoveryv1.EndpointSlice)))
}

func (r *Reconciler) atEgress(_ context.Context, o client.Object) []reconcile.Request {
	return r.at(k8s.AddressesOfEgress(o.(*kubeovnv1.EgressAddress)))
}

// at enqueues the Services that have one of the addresses, and those that wait for one.
func (r *Reconciler) at(addresses []netip.Addr) []reconcile.Request {
	var requests []reconcile.Request
	for _, a := range addresses {
		if holder := r.holders.of(a); holder.Name != "" {
			requests = append(requests, k8s.RequestOf(holder))
		}
	}
	if r.Pools.contain(addresses) {
		requests = append(requests, requestsOf(r.holders.freed())...)
	}
	return requests
}

func requestsOf(services []types.NamespacedName) []reconcile.Request {
	requests := make([]reconcile.Request, 0, len(services))
	for _, key := range services {
		requests = append(requests, k8s.RequestOf(key))
	}
	return requests
}
