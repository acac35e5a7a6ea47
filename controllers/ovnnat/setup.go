// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"context"
	"fmt"
	"slices"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// SetupWithManager registers a controller for each kind of rules, and one for pods that request them.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	for _, kind := range kubeovnv1.NATKinds {
		if err := (&controller{Reconciler: r, kind: kind.Kind}).setup(mgr); err != nil {
			return fmt.Errorf("set up the controller of %ss: %w", kind.Kind, err)
		}
	}
	if err := (&podRules{Reconciler: r}).setup(ctx, mgr); err != nil {
		return fmt.Errorf("set up the controller of pods with external addresses: %w", err)
	}
	return nil
}

// setup registers the controller. It enqueues a rule for changes of: the rule; the IP, the Vip or the Subnet that it translates; its OvnEip, with the former translations that it waits for; the VPC, with its
// external ports and its subnets; nodes that are ready for the ProviderNetwork of the external subnet; other rules, and claims of Services, that may have precedence; and drift of its rows.
func (r *controller) setup(mgr ctrl.Manager) error {
	by := func(prefix string) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request { return r.with(ctx, prefix+o.GetName()) })
	}
	own := lookup.EmptyNATRule(r.kind)
	b := ctrl.NewControllerManagedBy(mgr).Named(strings.ToLower(r.kind)).For(own, builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	for _, kind := range kubeovnv1.NATKinds {
		b = b.Watches(lookup.EmptyNATRule(kind.Kind), handler.EnqueueRequestsFromMapFunc(r.conflicting), builder.WithPredicates(k8s.Changed(lookup.ViewNATRule)))
	}
	return b.
		Watches(&kubeovnv1.RouterLBRule{}, handler.EnqueueRequestsFromMapFunc(r.ofRouterRule), builder.WithPredicates(k8s.Changed(lookup.ViewRouterRule))).
		Watches(&kubeovnv1.OvnEip{}, by("eip/"), builder.WithPredicates(k8s.Changed(viewEip))).
		Watches(&kubeovnv1.OvnEip{}, handler.EnqueueRequestsFromMapFunc(r.awaiting), builder.WithPredicates(k8s.Changed(viewReleasing))).
		Watches(&kubeovnv1.IP{}, by("ip/"), builder.WithPredicates(k8s.Changed(viewIP))).
		Watches(&kubeovnv1.Vip{}, by("vip/"), builder.WithPredicates(k8s.Changed(viewVip))).
		Watches(&kubeovnv1.Vpc{}, by("vpc/"), builder.WithPredicates(k8s.Changed(viewVpc))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.around), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&kubeovnv1.ProviderNetwork{}, handler.EnqueueRequestsFromMapFunc(r.onProvider), builder.WithPredicates(k8s.Changed(viewProvider))).
		WatchesRawSource(reconciler.OnServiceClaims(r.Networks, r.claimedBy)).
		WatchesRawSource(reconciler.Drift(r.Northbound, r.kind)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, own, reconciler.OwnersOf(r.Northbound, r.kind))).
		WithOptions(r.Gate.Workers(workers)).
		Complete(r.Gate.Reconciler(r))
}

func viewEip(eip *kubeovnv1.OvnEip) string {
	why, _ := k8s.WhyNotReady(eip.Status.Conditions, eip.Generation)
	return fmt.Sprint(eip.DeletionTimestamp != nil, eip.Status.V4IP, eip.Status.V6IP, eip.Status.Ready, why)
}

// viewReleasing has the former translations of an OvnEip, and the nodes that they wait for. A record that replaces an earlier one of the same translation is no change: the
// pass that writes it would otherwise enqueue itself again.
func viewReleasing(eip *kubeovnv1.OvnEip) string {
	var texts []string
	for id, release := range eip.Status.Releasing {
		texts = append(texts, hashIn(id)+" "+strings.Join(release.Nodes, ","))
	}
	slices.Sort(texts)
	return strings.Join(texts, ";")
}

// awaiting returns the rules that wait for a former translation of an OvnEip.
func (r *controller) awaiting(_ context.Context, o client.Object) []reconcile.Request {
	return k8s.Requests(r.contending.Of(releasingKey(o.GetName()))...)
}

func viewIP(ip *kubeovnv1.IP) string {
	_, static := ip.Labels[kubeovnv1.LabelStaticPod]
	return fmt.Sprint(static, ip.UID, ip.DeletionTimestamp, ip.Spec.V4IPAddress, ip.Spec.V6IPAddress, ip.Spec.Subnet, ip.Spec.NodeName, ip.Spec.MACAddress)
}

func viewVip(vip *kubeovnv1.Vip) string {
	return fmt.Sprint(k8s.ViewVip(vip), vip.DeletionTimestamp, vip.Status.V4IP, vip.Status.V6IP)
}

func viewVpc(vpc *kubeovnv1.Vpc) string {
	return fmt.Sprint(k8s.ViewVpc(vpc), lookup.ViewExternal(vpc))
}

func viewProvider(p *kubeovnv1.ProviderNetwork) string { return strings.Join(p.Status.ReadyNodes, ",") }

// with returns the rules of the kind with one of the keys (lookup.Networks.NATRulesBy), also rules that are not served.
func (r *controller) with(ctx context.Context, keys ...string) []reconcile.Request {
	rules, err := r.Networks.NATRulesOfKind(ctx, r.kind, keys...)
	if err != nil {
		return nil // the cache is stopping
	}
	return r.requests(rules, keys)
}

// requests returns rules, and the rules that contend for one of the keys.
func (r *controller) requests(rules []*lookup.NATRule, keys []string) []reconcile.Request {
	var requests []reconcile.Request
	for _, rule := range rules {
		requests = append(requests, k8s.Request(rule.GetName()))
	}
	for _, key := range keys {
		requests = append(requests, k8s.Requests(r.contending.Of(key)...)...)
	}
	return requests
}

// conflicting returns the other rules with which a rule may conflict.
func (r *controller) conflicting(ctx context.Context, o client.Object) []reconcile.Request {
	rule := lookup.NATRuleOf(o)
	keys := contested(rule)
	for _, eip := range rule.Eips() {
		keys = append(keys, "eip/"+eip)
	}
	rules, err := r.Networks.MayConflict(ctx, r.kind, rule, keys...)
	if err != nil {
		return nil // the cache is stopping
	}
	return r.requests(rules, keys)
}

// ofRouterRule returns the rules with an OvnEip that a RouterLBRule uses.
func (r *controller) ofRouterRule(ctx context.Context, o client.Object) []reconcile.Request {
	var keys []string
	for _, eip := range lookup.EipsOf(o.(*kubeovnv1.RouterLBRule)) {
		keys = append(keys, "eip/"+eip)
	}
	return r.with(ctx, keys...)
}

// claimedBy returns the rules with an OvnEip that a Service claims, of which the claim can change the outcome.
func (r *controller) claimedBy(ctx context.Context, claim lookup.ServiceClaim) []reconcile.Request {
	rules, err := r.Networks.MayConflictWith(ctx, r.kind, claim.ExternalClaim)
	if err != nil {
		return nil // the cache is stopping
	}
	return r.requests(rules, nil)
}

// around returns the rules that translate a subnet, and the rules of its VPC and of VPCs with a port in it.
func (r *controller) around(ctx context.Context, o client.Object) []reconcile.Request {
	keys := []string{"subnet/" + o.GetName()}
	for _, s := range lookup.Specs(o.(*kubeovnv1.Subnet)) {
		keys = append(keys, "vpc/"+lookup.VpcOf(s))
	}
	vpcs, err := r.Networks.VpcsWithExternal(ctx, o.GetName())
	if err != nil {
		return nil // the cache is stopping
	}
	for _, vpc := range vpcs {
		keys = append(keys, "vpc/"+vpc)
	}
	return r.with(ctx, keys...)
}

// onProvider returns the OvnFips of the VPCs with a port in a subnet of a ProviderNetwork: nodes of pods translate for some of them.
func (r *controller) onProvider(ctx context.Context, o client.Object) []reconcile.Request {
	if r.kind != translate.KindOvnFip {
		return nil
	}
	var keys []string
	for _, vlan := range o.(*kubeovnv1.ProviderNetwork).Status.Vlans {
		subnets, err := r.Networks.SubnetsOfVlan(ctx, vlan)
		if err != nil {
			return nil // the cache is stopping
		}
		for i := range subnets {
			vpcs, err := r.Networks.VpcsWithExternal(ctx, subnets[i].Name)
			if err != nil {
				return nil // the cache is stopping
			}
			for _, vpc := range vpcs {
				keys = append(keys, "vpc/"+vpc)
			}
		}
	}
	return r.with(ctx, keys...)
}
