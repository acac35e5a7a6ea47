// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovneip

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
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
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Indexes of the cache.
const (
	indexSubnet = "ovneip.subnet" // OvnEips by their subnet
	indexEip    = "ovneip.user"   // RouterLBRules by the OvnEip that they name
)

// SetupWithManager registers the reconciler. Changes of the OvnEip, its subnet, the rules and Services that use it and the nodes that it waits for wake it. While it waits for an
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
	if err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.OvnEip{}, indexNode, releasing); err != nil {
		return fmt.Errorf("index OvnEips by node: %w", err)
	}
	if err := (flusher{r}).setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of requests to nodes: %w", err)
	}
	b := reservation.OnHosts(ctrl.NewControllerManagedBy(mgr), r.Networks, &r.waiting)
	for _, kind := range kubeovnv1.NATKinds {
		b = b.Watches(lookup.EmptyNATRule(kind.Kind), handler.EnqueueRequestsFromMapFunc(namedBy), builder.WithPredicates(k8s.Changed(viewNames)))
	}
	return b.
		For(&kubeovnv1.OvnEip{}, builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, k8s.Changed(viewReleasing)))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.awaiting), builder.WithPredicates(k8s.Changed(viewFlushed))).
		Watches(&kubeovnv1.RouterLBRule{}, handler.EnqueueRequestsFromMapFunc(usedBy), builder.WithPredicates(k8s.Changed(namesOfEips))).
		Watches(&kubeovnv1.Vpc{}, handler.EnqueueRequestsFromMapFunc(portsOf), builder.WithPredicates(k8s.Changed(viewPorts))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.inSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		WatchesRawSource(reconciler.OnServiceClaims(r.Networks, func(_ context.Context, claim lookup.ServiceClaim) []reconcile.Request {
			return k8s.Requests(claim.Eip)
		})).
		WatchesRawSource(reconciler.OnUse(r.Allocator, reservation.WakeDelay, r.waiting.Of)).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

// namedBy returns the OvnEips that a rule uses.
func namedBy(_ context.Context, o client.Object) []reconcile.Request {
	return k8s.Requests(lookup.NATRuleOf(o).Eips()...)
}

func viewNames(o client.Object) string { return strings.Join(lookup.NATRuleOf(o).Eips(), ",") }

// portsOf returns the OvnEips of the external ports of a VPC.
func portsOf(_ context.Context, o client.Object) []reconcile.Request {
	var names []string
	for _, subnet := range lookup.ExternalOf(o.(*kubeovnv1.Vpc)) {
		names = append(names, translate.ExternalEip(o.GetName(), subnet))
	}
	return k8s.Requests(names...)
}

func viewPorts(vpc *kubeovnv1.Vpc) string { return strings.Join(lookup.ExternalOf(vpc), ",") }

func namesOfEips(rule *kubeovnv1.RouterLBRule) string { return strings.Join(lookup.EipsOf(rule), ",") }

func eipsOf(o client.Object) []string { return lookup.EipsOf(o.(*kubeovnv1.RouterLBRule)) }

// usedBy returns the OvnEips that a rule uses.
func usedBy(_ context.Context, o client.Object) []reconcile.Request {
	return k8s.Requests(eipsOf(o)...)
}

// awaiting returns the OvnEips whose former translations wait for a node.
func (r *Reconciler) awaiting(ctx context.Context, o client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.OvnEipList{}, client.MatchingFields{indexNode: o.GetName()})
}

func (r *Reconciler) inSubnet(ctx context.Context, o client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.OvnEipList{}, client.MatchingFields{indexSubnet: o.GetName()})
}
