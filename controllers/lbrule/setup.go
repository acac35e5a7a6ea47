// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// Indexes of the cache.
const (
	indexSlices = "lbrule.slices" // EndpointSlices of rules' Services, by the Service's name
	indexOwner  = "lbrule.owner"  // Services and Vips by the rules that own them
	indexVIP    = "lbrule.vip"    // Services and rules by the addresses that they are served at
)

// wakeDelay gathers changes of a subnet's use before rules are looked at again that wait for one.
const wakeDelay = 100 * time.Millisecond

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func keyOf(name string) types.NamespacedName { return types.NamespacedName{Name: name} }

func requestsFor(names ...string) []reconcile.Request {
	requests := make([]reconcile.Request, 0, len(names))
	for _, name := range names {
		requests = append(requests, reconcile.Request{NamespacedName: keyOf(name)})
	}
	return requests
}

func index(ctx context.Context, indexer client.FieldIndexer) error {
	for _, i := range []struct {
		object client.Object
		name   string
		keys   client.IndexerFunc
	}{
		{&discoveryv1.EndpointSlice{}, indexSlices, func(o client.Object) []string {
			if name := o.GetLabels()[discoveryv1.LabelServiceName]; strings.HasPrefix(name, servicePrefix) {
				return []string{name}
			}
			return nil
		}},
		{&corev1.Service{}, indexOwner, owners},
		{&kubeovnv1.Vip{}, indexOwner, owners},
		{&corev1.Service{}, indexVIP, vipsOf},
		{&kubeovnv1.SwitchLBRule{}, indexVIP, vipsOf},
	} {
		if err := indexer.IndexField(ctx, i.object, i.name, i.keys); err != nil {
			return fmt.Errorf("index %T by %s: %w", i.object, i.name, err)
		}
	}
	return nil
}

// SetupWithManager registers the reconciler. It wakes for its rule, for the rule's Service and that one's EndpointSlices, for other rules
// and Services with the same address, for Vips and subnets that it looked at, for the use of those that it waits in, and for drift.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	spec := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	rivals := handler.EnqueueRequestsFromMapFunc(r.rivals)
	err := ctrl.NewControllerManagedBy(mgr).
		Named("switchlbrule").
		For(&kubeovnv1.SwitchLBRule{}, spec).
		Watches(&kubeovnv1.SwitchLBRule{}, rivals, spec).
		Watches(&corev1.Service{}, rivals).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(owned)).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.ofSlice)).
		Watches(&kubeovnv1.Vip{}, handler.EnqueueRequestsFromMapFunc(r.interested("vip/"))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.aroundSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		WatchesRawSource(r.use()).
		WatchesRawSource(k8s.Drift(r.Northbound, translate.KindSwitchLBRule)).
		WatchesRawSource(k8s.Orphans(mgr.GetCache(), r.Gate, &kubeovnv1.SwitchLBRule{}, k8s.OwnersOf(r.Northbound, translate.KindSwitchLBRule))).
		Complete(r.Gate.Reconciler(r))
	if err != nil {
		return fmt.Errorf("set up the controller of SwitchLBRules: %w", err)
	}
	return nil
}

// rivals are the rules with an address that a rule or a Service has as well.
func (r *Reconciler) rivals(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, vip := range vipsOf(o) {
		var rules kubeovnv1.SwitchLBRuleList
		if err := r.Client.List(ctx, &rules, client.MatchingFields{indexVIP: vip}, client.UnsafeDisableDeepCopy); err != nil {
			return nil // the cache is stopping
		}
		for i := range rules.Items {
			if rules.Items[i].UID != o.GetUID() {
				requests = append(requests, requestsFor(rules.Items[i].Name)...)
			}
		}
	}
	return requests
}

func owned(_ context.Context, o client.Object) []reconcile.Request { return requestsFor(owners(o)...) }

// ofSlice is the rule whose Service an EndpointSlice is of, and its rivals: its endpoints decide in which VPC it is.
func (r *Reconciler) ofSlice(ctx context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[discoveryv1.LabelServiceName]
	if !strings.HasPrefix(name, servicePrefix) {
		return nil
	}
	service := &corev1.Service{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: o.GetNamespace(), Name: name}, service, client.UnsafeDisableDeepCopy); err != nil {
		return nil // it is gone, or its first event wakes the rule
	}
	var requests []reconcile.Request
	for _, rule := range owners(service) {
		requests = append(requests, requestsFor(rule)...)
		object := &kubeovnv1.SwitchLBRule{}
		if err := r.Client.Get(ctx, keyOf(rule), object, client.UnsafeDisableDeepCopy); err == nil {
			requests = append(requests, r.rivals(ctx, object)...)
		}
	}
	return requests
}

func (r *Reconciler) interested(prefix string) handler.MapFunc {
	return func(_ context.Context, o client.Object) []reconcile.Request {
		return requestsFor(r.interest.of(prefix + o.GetName())...)
	}
}

// aroundSubnet are the rules of a subnet's VPC, and those that name the subnet.
func (r *Reconciler) aroundSubnet(_ context.Context, o client.Object) []reconcile.Request {
	vpc := kubeovnv1.DefaultVpc
	if s, ok := o.(*kubeovnv1.Subnet); ok && s.Spec.Vpc != "" {
		vpc = s.Spec.Vpc
	}
	return append(requestsFor(r.interest.of("vpc/"+vpc)...), requestsFor(r.interest.of("switch/"+o.GetName())...)...)
}

// use enqueues the rules that look at who has which address of a subnet.
func (r *Reconciler) use() source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		r.Allocator.Notify(func(subnet string) {
			for _, request := range requestsFor(r.interest.of("use/" + subnet)...) {
				q.AddAfter(request, wakeDelay)
			}
		})
		return nil
	})
}
