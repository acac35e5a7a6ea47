// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// workers is the number of concurrent reconciles. They share transactions, and thus recomputations of ovn-northd.
const workers = 16

// subnetsDelay batches events of a VPC's subnets into one reconcile, because the VPC's status lists all subnets.
const subnetsDelay = 200 * time.Millisecond

// SetupWithManager registers the reconciler. Changes of the Vpc, of other VPCs and of subnets that share addresses, names or namespaces
// with it wake it, as do its namespaces, their pods in the default subnet, and drift.
func (r *Reconciler) SetupWithManager(_ context.Context, mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&kubeovnv1.Vpc{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kubeovnv1.Vpc{}, handler.EnqueueRequestsFromMapFunc(r.affectedVpcs), builder.WithPredicates(k8s.Changed(k8s.ViewVpc))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.aroundSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&kubeovnv1.Subnet{}, onSubnet, builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&corev1.Pod{}, r.Namespaces.OnMisplaced(r.listing)).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.onNamespace), builder.WithPredicates(k8s.ComesOrGoes)).
		WatchesRawSource(&r.detached).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindVpc)).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindProtection)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, &kubeovnv1.Vpc{},
			reconciler.OwnersOf(r.Northbound, translate.KindVpc), reconciler.OwnersOf(r.Northbound, translate.KindProtection))).
		WithOptions(r.Gate.Workers(workers)).
		Complete(r.Gate.Reconciler(r))
}

// onNamespace enqueues the VPCs that list a namespace.
func (r *Reconciler) onNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return k8s.Requests(r.listing(ctx, ns.GetName())...)
}

// onSubnet enqueues a subnet's VPC, both before and after a change.
var onSubnet = handler.Funcs{
	CreateFunc: func(_ context.Context, e event.CreateEvent, q k8s.Queue) { enqueueVpcOf(q, e.Object) },
	DeleteFunc: func(_ context.Context, e event.DeleteEvent, q k8s.Queue) { enqueueVpcOf(q, e.Object) },
	UpdateFunc: func(_ context.Context, e event.UpdateEvent, q k8s.Queue) {
		enqueueVpcOf(q, e.ObjectOld)
		enqueueVpcOf(q, e.ObjectNew)
	},
}

// enqueueVpcOf enqueues a subnet's VPC after subnetsDelay. The join subnet causes no delay, because default routes lead to its gateways.
func enqueueVpcOf(q k8s.Queue, o client.Object) {
	subnet := o.(*kubeovnv1.Subnet)
	if subnet.Name == kubeovnv1.JoinSubnet {
		q.Add(k8s.Request(lookup.VpcOf(k8s.Applied(subnet))))
		return
	}
	for _, s := range lookup.Specs(subnet) {
		q.AddAfter(k8s.Request(lookup.VpcOf(s)), subnetsDelay)
	}
}

// aroundSubnet returns the other VPCs that a subnet's creation, change or deletion may affect: the one with its name, VPCs with a
// conflicting port name, and VPCs with it as default or external subnet.
func (r *Reconciler) aroundSubnet(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.sameNames(ctx, o)
	if namesake, err := r.Networks.SameName(ctx, o); err == nil && namesake != nil {
		requests = append(requests, k8s.Request(namesake.GetName()))
	}
	vpcs, err := r.Networks.VpcsWithDefault(ctx, o.GetName())
	if err != nil {
		return requests // the cache is stopping
	}
	external, err := r.Networks.VpcsWithExternal(ctx, o.GetName())
	if err != nil {
		return requests // the cache is stopping
	}
	return append(requests, k8s.Requests(append(vpcs, external...)...)...)
}

// affectedVpcs returns the other VPCs that a VPC's creation, change or deletion may affect: its peers, VPCs with a conflicting port name,
// and VPCs that list one of its namespaces.
func (r *Reconciler) affectedVpcs(ctx context.Context, o client.Object) []reconcile.Request {
	vpc := o.(*kubeovnv1.Vpc)
	requests := r.sameNames(ctx, vpc)
	peers, err := r.Networks.PeersOf(ctx, vpc.Name)
	if err != nil {
		return requests // the cache is stopping
	}
	applied := k8s.AppliedVpc(vpc)
	for _, spec := range []*kubeovnv1.VpcSpec{&vpc.Spec, &applied.Spec} {
		router, _ := validation.Vpc(vpc.Name, spec)
		for _, peering := range router.Peerings {
			peers = append(peers, peering.Remote)
		}
	}
	for _, namespace := range applied.Spec.Namespaces {
		listing, err := r.Namespaces.Listing(ctx, namespace)
		if err != nil {
			return requests // the cache is stopping
		}
		for _, other := range listing {
			peers = append(peers, other.Name)
		}
	}
	return append(requests, k8s.Requests(peers...)...)
}

// sameNames returns the VPCs that request a port name that the object requests as well.
func (r *Reconciler) sameNames(ctx context.Context, o client.Object) []reconcile.Request {
	conflicts, err := r.Networks.PortNameConflicts(ctx, o)
	if err != nil {
		return nil // the cache is stopping
	}
	return k8s.RequestsOf[*kubeovnv1.Vpc](conflicts)
}
