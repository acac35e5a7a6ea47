// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovneip

import (
	"context"
	"fmt"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/reservation"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Indexes of the cache.
const (
	indexSubnet = "ovneip.subnet" // OvnEips by their subnet
	indexEip    = "ovneip.user"   // RouterLBRules by the OvnEip that they name
)

// SetupWithManager registers the reconciler. Changes of the OvnEip, its subnet and the rules that use it wake it. While it waits for an
// address, changes in the use of the subnet's addresses, and of hosts in its network, wake it, too.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.OvnEip{}, indexSubnet, func(o client.Object) []string {
		return []string{subnetOf(o.(*kubeovnv1.OvnEip))}
	})
	if err != nil {
		return fmt.Errorf("index OvnEips by subnet: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.RouterLBRule{}, indexEip, eipsOf); err != nil {
		return fmt.Errorf("index RouterLBRules by OvnEip: %w", err)
	}
	return reservation.OnHosts(ctrl.NewControllerManagedBy(mgr), r.Networks, &r.waiting).
		For(&kubeovnv1.OvnEip{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kubeovnv1.RouterLBRule{}, handler.EnqueueRequestsFromMapFunc(usedBy), builder.WithPredicates(k8s.Changed(namesOfEips))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.inSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		WatchesRawSource(reconciler.OnUse(r.Allocator, reservation.WakeDelay, r.waiting.Of)).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

func namesOfEips(rule *kubeovnv1.RouterLBRule) string { return strings.Join(lookup.EipsOf(rule), ",") }

func eipsOf(o client.Object) []string { return lookup.EipsOf(o.(*kubeovnv1.RouterLBRule)) }

// usedBy returns the OvnEips that a rule uses.
func usedBy(_ context.Context, o client.Object) []reconcile.Request {
	return k8s.Requests(eipsOf(o)...)
}

func (r *Reconciler) inSubnet(ctx context.Context, o client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.OvnEipList{}, client.MatchingFields{indexSubnet: o.GetName()})
}
