// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippool

import (
	"cmp"
	"context"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// usageDelay batches changes in a subnet's use into one status update.
const usageDelay = time.Second

// SetupWithManager registers the reconciler. Changes of the IPPool, of pools of the same subnet or with the same address set, of the
// subnet and of the use of its addresses wake it, as does drift.
func (r *Reconciler) SetupWithManager(_ context.Context, mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&kubeovnv1.IPPool{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kubeovnv1.IPPool{}, handler.EnqueueRequestsFromMapFunc(r.siblings), builder.WithPredicates(k8s.Changed(k8s.ViewPool))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.inSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		WatchesRawSource(reconciler.OnUse(r.Allocator, cmp.Or(r.UsageDelay, usageDelay), r.Allocator.Pools)).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindIPPool)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, &kubeovnv1.IPPool{}, reconciler.OwnersOf(r.Northbound, translate.KindIPPool))).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

// siblings returns the pools whose address sets have the same name, the youngest first, because it has to give up the set before an older one publishes it; and
// then the pools of the same subnet.
func (r *Reconciler) siblings(ctx context.Context, o client.Object) []reconcile.Request {
	namesakes, err := r.Pools.OfSet(ctx, translate.PoolSet(o.GetName()))
	if err != nil {
		return nil // the cache is stopping
	}
	slices.Reverse(namesakes)
	return append(k8s.RequestsOf[*kubeovnv1.IPPool](namesakes), r.poolsOf(ctx, o.(*kubeovnv1.IPPool).Spec.Subnet)...)
}

func (r *Reconciler) inSubnet(ctx context.Context, o client.Object) []reconcile.Request {
	return r.poolsOf(ctx, o.GetName())
}

func (r *Reconciler) poolsOf(ctx context.Context, subnet string) []reconcile.Request {
	pools, err := r.Pools.OfSubnet(ctx, subnet)
	if err != nil {
		return nil // the cache is stopping
	}
	return k8s.RequestsOf[*kubeovnv1.IPPool](pools)
}
