// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/vipusers"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Indexes of the cache.
const (
	indexSlices = "lbrule.slices" // EndpointSlices of rules' Services by the name of the Service
	indexVIP    = "lbrule.vip"    // SwitchLBRules by their addresses
	indexEip    = "lbrule.eip"    // RouterLBRules by their OvnEip
)

// indexOwner returns the name of the index of Services and Vips by owning rules of one kind.
func indexOwner(kind string) string { return "lbrule.owner." + kind }

func (r *controller) indexOwner() string { return indexOwner(r.kind) }

// wakeDelay batches changes of a subnet's usage before the rules that depend on it are requeued.
const wakeDelay = 100 * time.Millisecond

func keyOf(name string) types.NamespacedName { return types.NamespacedName{Name: name} }

func index(ctx context.Context, indexer client.FieldIndexer) error {
	for _, i := range []struct {
		object client.Object
		name   string
		keys   client.IndexerFunc
	}{
		{&discoveryv1.EndpointSlice{}, indexSlices, func(o client.Object) []string {
			if name := o.GetLabels()[discoveryv1.LabelServiceName]; kindOf(name) != "" {
				return []string{name}
			}
			return nil
		}},
		{&kubeovnv1.RouterLBRule{}, indexEip, func(o client.Object) []string { return lookup.EipsOf(o.(*kubeovnv1.RouterLBRule)) }},
		{&kubeovnv1.SwitchLBRule{}, indexVIP, func(o client.Object) []string { return textsOf(vipsOf(o)) }},
	} {
		if err := indexer.IndexField(ctx, i.object, i.name, i.keys); err != nil {
			return fmt.Errorf("index %T by %s: %w", i.object, i.name, err)
		}
	}
	for _, kind := range kinds {
		for _, o := range []client.Object{&corev1.Service{}, &kubeovnv1.Vip{}} {
			if err := indexer.IndexField(ctx, o, indexOwner(kind), func(o client.Object) []string { return owners(o, kind) }); err != nil {
				return fmt.Errorf("index %T by %s: %w", o, kind, err)
			}
		}
	}
	return nil
}

// SetupWithManager registers a controller for each kind of rules.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	for _, kind := range kinds {
		if err := (&controller{Reconciler: r, kind: kind}).setup(mgr); err != nil {
			return fmt.Errorf("set up the controller of %ss: %w", kind, err)
		}
	}
	return nil
}

// setup registers the controller. It enqueues a rule for changes of: the rule, its Service and the EndpointSlices of the Service; other
// rules, OvnEips, Services and claims of Services with the same address; Vips, VPCs, namespaces and subnets that it depends on (interest); the usage of these
// subnets; the pods that use these Vips; and drift of its rows.
func (r *controller) setup(mgr ctrl.Manager) error {
	spec := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	atSameAddress := handler.EnqueueRequestsFromMapFunc(r.rulesAtSameAddress)
	own := newRule(r.kind).Object
	b := ctrl.NewControllerManagedBy(mgr).Named(strings.ToLower(r.kind)).For(own, spec)
	for _, kind := range kinds {
		b = b.Watches(newRule(kind).Object, atSameAddress, builder.WithPredicates(predicate.Or(predicate.AnnotationChangedPredicate{}, k8s.Changed(viewSpec))))
	}
	if r.kind == translate.KindRouterLBRule {
		for _, kind := range kubeovnv1.NATKinds {
			b = b.Watches(lookup.EmptyNATRule(kind.Kind), handler.EnqueueRequestsFromMapFunc(r.besideNAT), builder.WithPredicates(k8s.Changed(lookup.ViewNATRule)))
		}
	}
	return b.
		Watches(&kubeovnv1.OvnEip{}, atSameAddress).
		Watches(&corev1.Service{}, atSameAddress).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(r.owned)).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.ofSlice)).
		Watches(&kubeovnv1.Vip{}, handler.EnqueueRequestsFromMapFunc(r.interested("vip/"))).
		Watches(&kubeovnv1.Vpc{}, handler.EnqueueRequestsFromMapFunc(r.interested("vpc/")), builder.WithPredicates(k8s.Changed(viewVpc))).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.interested("namespace/")), builder.WithPredicates(comes)).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.aroundSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		WatchesRawSource(r.usersOfVips()).
		WatchesRawSource(reconciler.OnServiceClaims(r.Networks, r.claimedBy)).
		WatchesRawSource(reconciler.OnUse(r.Allocator, wakeDelay, r.usersOf)).
		WatchesRawSource(reconciler.Drift(r.Northbound, r.kind)).
		WatchesRawSource(reconciler.Orphans(mgr.GetCache(), r.Gate, newRule(r.kind).Object, reconciler.OwnersOf(r.Northbound, r.kind))).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

// vpcView is the part of a VPC that rules depend on.
type vpcView struct {
	k8s.VpcView

	external string
}

func viewVpc(v *kubeovnv1.Vpc) vpcView { return vpcView{k8s.ViewVpc(v), lookup.ViewExternal(v)} }

// besideNAT enqueues the RouterLBRules with an OvnEip of another rule.
func (r *controller) besideNAT(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, eip := range lookup.NATRuleOf(o).Eips() {
		rules, err := r.rulesOf(ctx, eip)
		if err != nil {
			return nil // the cache is stopping
		}
		for _, rule := range rules {
			requests = append(requests, k8s.Request(rule.GetName()))
		}
	}
	return requests
}

// claimedBy enqueues the rules at the addresses of an OvnEip that a Service claims.
func (r *controller) claimedBy(ctx context.Context, claim lookup.ServiceClaim) []reconcile.Request {
	var rules []*rule
	for _, address := range claim.Addresses {
		at, err := r.rulesAt(ctx, address)
		if err != nil {
			return nil // the cache is stopping
		}
		rules = append(rules, at...)
	}
	return r.requestsOf(rules)
}

// requestsOf returns the rules of the kind among rules of both kinds.
func (r *controller) requestsOf(rules []*rule) []reconcile.Request {
	var requests []reconcile.Request
	for _, rule := range rules {
		if rule.kind == r.kind {
			requests = append(requests, k8s.Request(rule.GetName()))
		}
	}
	return requests
}

// comes selects the creation of objects.
var comes = predicate.Funcs{
	UpdateFunc: func(event.UpdateEvent) bool { return false },
	DeleteFunc: func(event.DeleteEvent) bool { return false },
}

// rulesAtSameAddress enqueues the rules that share an address with a rule, an OvnEip or a Service, and the rules that name the OvnEip.
func (r *controller) rulesAtSameAddress(ctx context.Context, o client.Object) []reconcile.Request {
	var rules []*rule
	addresses := vipsOf(o)
	eip, isEip := o.(*kubeovnv1.OvnEip)
	if router, ok := o.(*kubeovnv1.RouterLBRule); ok {
		for _, name := range lookup.EipsOf(router) {
			eip := &kubeovnv1.OvnEip{}
			if err := r.Client.Get(ctx, keyOf(name), eip, client.UnsafeDisableDeepCopy); err == nil { // otherwise it has no addresses
				addresses = append(addresses, vipsOf(eip)...)
			}
		}
	}
	if isEip { // deleted OvnEips, too
		rules, _ = r.rulesOf(ctx, eip.Name)
	}
	for _, address := range addresses {
		others, err := r.rulesAt(ctx, address)
		if err != nil {
			return nil // the cache is stopping
		}
		rules = append(rules, others...)
	}
	return r.requestsOf(slices.DeleteFunc(rules, func(other *rule) bool { return other.GetUID() == o.GetUID() }))
}

func (r *controller) owned(_ context.Context, o client.Object) []reconcile.Request {
	return k8s.Requests(owners(o, r.kind)...)
}

// ofSlice enqueues the rule to whose Service an EndpointSlice belongs, and the rules that share its addresses, because the endpoints
// determine the VPC of the rule.
func (r *controller) ofSlice(ctx context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[discoveryv1.LabelServiceName]
	kind := kindOf(name)
	if kind == "" {
		return nil
	}
	service := &corev1.Service{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: o.GetNamespace(), Name: name}, service, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the Service is deleted, or its creation enqueues the rule
	}
	var requests []reconcile.Request
	for _, name := range owners(service, kind) {
		if kind == r.kind {
			requests = append(requests, k8s.Request(name))
		}
		if owner := newRule(kind); r.Client.Get(ctx, keyOf(name), owner.Object, client.UnsafeDisableDeepCopy) == nil {
			requests = append(requests, r.rulesAtSameAddress(ctx, owner.Object)...)
		}
	}
	return requests
}

func (r *controller) interested(prefix string) handler.MapFunc {
	return func(_ context.Context, o client.Object) []reconcile.Request {
		return k8s.Requests(r.interest.Of(prefix + o.GetName())...)
	}
}

// aroundSubnet enqueues the rules of a subnet's VPC, and the rules that name the subnet.
func (r *controller) aroundSubnet(_ context.Context, o client.Object) []reconcile.Request {
	return append(k8s.Requests(r.interest.Of("vpc/"+lookup.VpcOf(k8s.Applied(o.(*kubeovnv1.Subnet))))...), k8s.Requests(r.interest.Of("switch/"+o.GetName())...)...)
}

// usersOfVips enqueues the rules that depend on a Vip whose pods change. The source is ready once the index of users is complete.
func (r *controller) usersOfVips() source.Source {
	return source.Func(func(ctx context.Context, q k8s.Queue) error {
		r.Vips.Notify(func(vip string, _ vipusers.User) {
			for _, rule := range r.interest.Of("vip/" + vip) {
				q.Add(k8s.Request(rule))
			}
		})
		return r.Vips.Wait(ctx)
	})
}

// usersOf returns the rules that depend on the holders of addresses of a subnet.
func (r *controller) usersOf(subnet string) []string { return r.interest.Of("use/" + subnet) }
