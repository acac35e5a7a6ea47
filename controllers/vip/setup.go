// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vip

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/reservation"
	"github.com/kiln-net/kiln/internal/address/vipusers"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// indexSubnet finds Vips by their subnet.
const indexSubnet = "vip.subnet"

// SetupWithManager registers the reconciler. Changes of the Vip, its users and its subnet wake it, as does drift. While the Vip waits,
// changes in the use of the subnet's addresses, and of hosts in its network, wake it, too.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.Vip{}, indexSubnet, func(o client.Object) []string {
		return []string{subnetOf(o.(*kubeovnv1.Vip))}
	})
	if err != nil {
		return fmt.Errorf("index Vips by subnet: %w", err)
	}
	return reservation.OnHosts(ctrl.NewControllerManagedBy(mgr), r.Networks, &r.waiting).
		For(&kubeovnv1.Vip{}, builder.WithPredicates(k8s.Changed(k8s.ViewVip))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.inSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		WatchesRawSource(r.users()).
		WatchesRawSource(reconciler.OnUse(r.Allocator, reservation.WakeDelay, r.waiting.Of)).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindVip)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, &kubeovnv1.Vip{}, reconciler.OwnersOf(r.Northbound, translate.KindVip))).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

func (r *Reconciler) inSubnet(ctx context.Context, o client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.VipList{}, client.MatchingFields{indexSubnet: o.GetName()})
}

// users enqueues Vips whose users change. The source is ready once the index of users is complete, so that no Vip is reconciled without
// its users.
func (r *Reconciler) users() source.Source {
	return source.Func(func(ctx context.Context, q k8s.Queue) error {
		r.Vips.Notify(func(vip string, _ vipusers.User) { q.Add(k8s.Request(vip)) })
		return r.Vips.Wait(ctx)
	})
}
