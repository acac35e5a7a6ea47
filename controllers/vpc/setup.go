// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/selection"
	"github.com/kiln-net/kiln/internal/validation"
)

// workers work on VPCs at a time, so that many share a transaction, and with it a computation of ovn-northd.
const workers = 16

// subnetsDelay gathers what happens to the subnets of a VPC into one look at all of them: the VPC's status names each.
const subnetsDelay = 200 * time.Millisecond

// SetupWithManager registers the reconciler. It wakes for its Vpc; for other VPCs and for subnets, whose addresses, names and
// namespaces matter to it; and for drift.
func (r *Reconciler) SetupWithManager(_ context.Context, mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		For(&kubeovnv1.Vpc{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kubeovnv1.Vpc{}, handler.EnqueueRequestsFromMapFunc(r.rivals), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.aroundSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&kubeovnv1.Subnet{}, onSubnet, builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		WatchesRawSource(&r.detached).
		WatchesRawSource(k8s.Drift(r.Northbound, translate.KindVpc)).
		WatchesRawSource(k8s.OrphansOf(mgr, r.Gate, &kubeovnv1.Vpc{}, k8s.OwnersOf(r.Northbound, translate.KindVpc))).
		WithOptions(r.Gate.Workers(workers)).
		Complete(r.Gate.Reconciler(r))
	if err != nil {
		return fmt.Errorf("set up the controller of VPCs: %w", err)
	}
	return nil
}

// onSubnet enqueues the VPC that a subnet is in, and the one it was in.
var onSubnet = handler.Funcs{
	CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { enqueueVpcOf(q, e.Object) },
	DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { enqueueVpcOf(q, e.Object) },
	UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
		enqueueVpcOf(q, e.ObjectOld)
		enqueueVpcOf(q, e.ObjectNew)
	},
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// enqueueVpcOf enqueues a subnet's VPC: for the join subnet, which default routes go to, at once.
func enqueueVpcOf(q queue, o client.Object) {
	subnet := o.(*kubeovnv1.Subnet)
	if subnet.Name == kubeovnv1.JoinSubnet {
		q.Add(k8s.Request(selection.VpcOf(subnet)))
		return
	}
	q.AddAfter(k8s.Request(selection.VpcOf(subnet)), subnetsDelay)
}

// aroundSubnet are the VPCs, beside its own, for which a subnet's appearance, change or end may decide: the one of its name, those
// that want a port of the same name, and those that name it as their default.
func (r *Reconciler) aroundSubnet(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.sameNames(ctx, o)
	if namesake, err := r.Networks.SameName(ctx, o); err == nil && namesake != nil {
		requests = append(requests, k8s.Request(namesake.GetName()))
	}
	vpcs, err := r.Networks.VpcsWithDefault(ctx, o.GetName())
	if err != nil {
		return requests // the cache is stopping
	}
	return append(requests, k8s.Requests(vpcs...)...)
}

// rivals are the other VPCs for which a VPC's appearance, change or end may decide: its peers, those that want a port of the same
// name, and those that list a namespace of it.
func (r *Reconciler) rivals(ctx context.Context, o client.Object) []reconcile.Request {
	vpc := o.(*kubeovnv1.Vpc)
	requests := r.sameNames(ctx, vpc)
	peers, err := r.Networks.PeersOf(ctx, vpc.Name)
	if err != nil {
		return requests // the cache is stopping
	}
	router, _ := validation.Vpc(vpc.Name, &vpc.Spec)
	for _, peering := range router.Peerings {
		peers = append(peers, peering.Remote)
	}
	for _, namespace := range vpc.Spec.Namespaces {
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

// sameNames are the VPCs that want a port of a name that the object wants.
func (r *Reconciler) sameNames(ctx context.Context, o client.Object) []reconcile.Request {
	rivals, err := r.Networks.PortNameRivals(ctx, o)
	if err != nil {
		return nil // the cache is stopping
	}
	return k8s.RequestsOf[*kubeovnv1.Vpc](rivals)
}
