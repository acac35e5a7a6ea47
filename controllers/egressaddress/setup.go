// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// Indexes of EgressAddresses, by their applied specs.
const (
	indexAddress = "egressaddress.address" // by each address
	indexEip     = "egressaddress.eip"     // by the OvnEip
	// indexNode is by the nodes of the pair in status. EgressAddresses on nodes that lack one are listed under the empty name.
	indexNode = "egressaddress.node"
)

// countPace limits writes of the number of pods, which agents receive.
const countPace = 15 * time.Second

// SetupWithManager registers the reconciler. It enqueues an EgressAddress for changes of: the EgressAddress; others with its addresses; the pods that it selects; the nodes of
// its pair and their Leases; the OvnEip, and the rules of its pods; the nodes with a speaker; the join subnet, and subnets, Services, nodes and the API server with its addresses; and drift of its rows. Changes of other nodes
// enqueue only EgressAddresses that lack a node.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	r.allocations.Allocator = r.Allocator
	r.pods.Delay, r.pods.Every = 100*time.Millisecond, cmp.Or(r.CountPace, countPace)
	r.Leases.Subscribe(func(node string) {
		for _, req := range r.withNode(ctx, node) {
			r.moved.Add(req.Name)
		}
	})
	r.Sets.Observe(func(c podset.Changes) {
		for _, owner := range c.Users {
			if owner.Kind == translate.KindEgressAddress {
				r.pods.Changed(owner.Name)
			}
		}
		for _, owner := range c.Complete {
			if owner.Kind == translate.KindEgressAddress {
				r.moved.Add(owner.Name)
			}
		}
	})
	for name, extract := range map[string]func(*kubeovnv1.EgressAddress) []string{indexAddress: addressesOf, indexEip: eipOf, indexNode: nodesOf} {
		err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.EgressAddress{}, name, func(o client.Object) []string { return extract(o.(*kubeovnv1.EgressAddress)) })
		if err != nil {
			return fmt.Errorf("index EgressAddresses: %w", err)
		}
	}
	b := ctrl.NewControllerManagedBy(mgr)
	if r.ServiceCIDRs.Served() {
		b = b.Watches(&networkingv1.ServiceCIDR{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	return b.
		Named("egressaddress").
		For(&kubeovnv1.EgressAddress{}, builder.WithPredicates(k8s.Changed(viewObject))).
		Watches(&kubeovnv1.EgressAddress{}, handler.EnqueueRequestsFromMapFunc(r.sharing), builder.WithPredicates(k8s.Changed(viewAddresses))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.onNode), builder.WithPredicates(k8s.Changed(viewNode))).
		Watches(&kubeovnv1.IP{}, handler.EnqueueRequestsFromMapFunc(r.onHost), builder.WithPredicates(k8s.NodeRecords(k8s.Changed(viewHost)))).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.onAPIServer), builder.WithPredicates(predicate.NewPredicateFuncs(lookup.IsOfAPIServer))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.onSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&kubeovnv1.OvnEip{}, handler.EnqueueRequestsFromMapFunc(r.onEip), builder.WithPredicates(k8s.Changed(viewEip))).
		Watches(&kubeovnv1.OvnSnatRule{}, handler.EnqueueRequestsFromMapFunc(r.onRule), builder.WithPredicates(k8s.Changed(viewRule))).
		WatchesRawSource(&r.moved).
		WatchesRawSource(r.Speakers.Source()).
		WatchesRawSource(&r.pods).
		WatchesRawSource(r.allocations.Source()).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindEgressAddress)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, &kubeovnv1.EgressAddress{}, reconciler.OwnersOf(r.Northbound, translate.KindEgressAddress))).
		WatchesRawSource(reconciler.OnUse(r.Allocator, 100*time.Millisecond, r.excludedIn)).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(r.onService), builder.WithPredicates(k8s.Changed(viewBalancer))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.onSources), builder.WithPredicates(k8s.Changed(viewSources))).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

// addressesOf returns the addresses on nodes in the applied spec.
func addressesOf(e *kubeovnv1.EgressAddress) []string {
	spec := k8s.AppliedEgress(e)
	if spec == nil {
		return nil
	}
	parsed, _ := validation.EgressAddress(spec)
	var texts []string
	for _, address := range parsed.Addresses {
		texts = append(texts, address.String())
	}
	return texts
}

func eipOf(e *kubeovnv1.EgressAddress) []string {
	if spec := k8s.AppliedEgress(e); spec != nil && spec.OvnEip != "" {
		return []string{spec.OvnEip}
	}
	return nil
}

func nodesOf(e *kubeovnv1.EgressAddress) []string {
	if len(addressesOf(e)) == 0 {
		return nil
	}
	return []string{e.Status.Node, e.Status.Standby}
}

// objectView has the fields of an EgressAddress that the reconciler depends on: its spec, its announcement, and the fields in status that it writes.
type objectView struct {
	generation                             int64
	leaving                                bool
	node, standby, addresses, announcement string
}

func viewObject(e *kubeovnv1.EgressAddress) objectView {
	return objectView{e.Generation, e.DeletionTimestamp != nil, e.Status.Node, e.Status.Standby, strings.Join(e.Status.Addresses, ","), announcementOf(e)}
}

func viewAddresses(e *kubeovnv1.EgressAddress) string { return strings.Join(addressesOf(e), ",") }

// nodeView has the fields that determine whether a node can have addresses.
type nodeView struct {
	state        gateway.State
	hops, labels string
}

func viewNode(n *corev1.Node) nodeView {
	return nodeView{gateway.StateOf(n, gateway.NoLease), join.Published(n), labels.Set(n.Labels).String()}
}

func viewHost(ip *kubeovnv1.IP) string { return ipfamily.Join(k8s.AddressesOfNode(ip)) }

func viewEip(eip *kubeovnv1.OvnEip) string {
	why, _ := k8s.WhyNotReady(eip.Status.Conditions, eip.Generation)
	return fmt.Sprint(eip.Status.V4IP, " ", eip.Status.V6IP, " ", why)
}

// viewRule is the part of a rule of a selected pod that its EgressAddress reports; empty for other rules.
func viewRule(rule *kubeovnv1.OvnSnatRule) string {
	name := rule.Annotations[kubeovnv1.EgressOfRule]
	if name == "" {
		return ""
	}
	why, known := k8s.WhyNotReady(rule.Status.Conditions, rule.Generation)
	return fmt.Sprint(name, " ", known, " ", why)
}

func (r *Reconciler) by(ctx context.Context, index, value string) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.EgressAddressList{}, client.MatchingFields{index: value})
}

func (r *Reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.EgressAddressList{})
}

// sharing returns the other EgressAddresses with an address of one.
func (r *Reconciler) sharing(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.at(ctx, addressesOf(o.(*kubeovnv1.EgressAddress))...)
	return slices.DeleteFunc(requests, func(req reconcile.Request) bool { return req.Name == o.GetName() })
}

func (r *Reconciler) at(ctx context.Context, addresses ...string) []reconcile.Request {
	var requests []reconcile.Request
	for _, address := range addresses {
		requests = append(requests, r.by(ctx, indexAddress, address)...)
	}
	return requests
}

// onNode returns the EgressAddresses that use a node, and EgressAddresses that lack a node.
func (r *Reconciler) onNode(ctx context.Context, node client.Object) []reconcile.Request {
	return r.withNode(ctx, node.GetName())
}

func (r *Reconciler) withNode(ctx context.Context, node string) []reconcile.Request {
	return append(r.by(ctx, indexNode, node), r.by(ctx, indexNode, "")...)
}

// onHost returns the EgressAddresses with an address of a node.
func (r *Reconciler) onHost(ctx context.Context, o client.Object) []reconcile.Request {
	return r.having(ctx, k8s.AddressesOfNode(o.(*kubeovnv1.IP)))
}

// onAPIServer returns the EgressAddresses with an address of the API server.
func (r *Reconciler) onAPIServer(ctx context.Context, o client.Object) []reconcile.Request {
	return r.having(ctx, lookup.EndpointAddresses(o.(*discoveryv1.EndpointSlice)))
}

// onSubnet returns the EgressAddresses with an address in a subnet; for the join subnet all of them.
func (r *Reconciler) onSubnet(ctx context.Context, o client.Object) []reconcile.Request {
	if join.Is(o) {
		return r.all(ctx, o)
	}
	valid := k8s.WithValidSpec(o.(*kubeovnv1.Subnet))
	if valid == nil {
		return nil
	}
	cidrs, _ := ipfamily.ParseCIDRs(valid.Spec.CIDRBlock)
	var list kubeovnv1.EgressAddressList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if slices.ContainsFunc(ipfamily.ValidAddrs(addressesOf(&list.Items[i])...), func(a netip.Addr) bool {
			return slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
		}) {
			requests = append(requests, k8s.Request(list.Items[i].Name))
		}
	}
	return requests
}

func (r *Reconciler) onEip(ctx context.Context, o client.Object) []reconcile.Request {
	return r.by(ctx, indexEip, o.GetName())
}

// onRule records that a rule of a selected pod has changed.
func (r *Reconciler) onRule(_ context.Context, o client.Object) []reconcile.Request {
	if name := o.GetAnnotations()[kubeovnv1.EgressOfRule]; name != "" {
		r.pods.Changed(name)
	}
	return nil
}
