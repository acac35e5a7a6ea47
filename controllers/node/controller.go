// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node connects nodes to the default VPC. Each node has a port on the join subnet: through it the node reaches pods, and its pods
// leave the overlay.
package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/svc"
)

// workers is the number of concurrent reconciles. They mostly wait for responses, and for others to share a transaction with.
const workers = 32

// Reconciler connects each node to the default VPC.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server what the cache may not have yet.
	Live       client.Reader
	Northbound *northbound.Engine
	Allocator  *ipam.Allocator
	Networks   *lookup.Networks
	// ServiceCIDRs are the CIDRs of Services, in which nodes have no addresses.
	ServiceCIDRs svc.CIDRs
	Recorder     events.EventRecorder
	Gate         *reconciler.StartGate
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	// allocations are the nodes' allocations on the join subnet.
	allocations join.Allocations
	claims      claims
	apiServers  apiServers
	// requests enqueues nodes whose claims change because of other nodes.
	requests k8s.RequestSource
	// written maps a node's name to the nodeView.annotations that this process has written, or is about to write.
	written sync.Map
}

// SetupWithManager registers the reconciler. It enqueues a node for changes of: the node; its IP object; the join subnet; subnets of the default VPC
// and CIDRs of Services that contain an address that the node claims; claims of other nodes; and drift of its rows.
func (r *Reconciler) SetupWithManager(_ context.Context, mgr ctrl.Manager) error {
	r.allocations.Allocator = r.Allocator
	b := ctrl.NewControllerManagedBy(mgr)
	if r.ServiceCIDRs.Served() {
		b = b.Watches(&networkingv1.ServiceCIDR{}, handler.EnqueueRequestsFromMapFunc(r.inServices), builder.WithPredicates(k8s.ComesOrGoes))
	}
	return b.
		For(&corev1.Node{}, builder.WithPredicates(k8s.Changed(viewNode), r.byOthers())).
		WatchesRawSource(join.Holder(k8s.NodeOf).Source(mgr.GetCache(), r.Gate, changedIP)).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.allNodes),
			builder.WithPredicates(predicate.NewPredicateFuncs(join.Is), k8s.Changed(k8s.ViewSubnet))).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.inSubnet), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.rememberAPIServer),
			builder.WithPredicates(predicate.NewPredicateFuncs(lookup.IsOfAPIServer))).
		WatchesRawSource(r.allocations.Source()).
		WatchesRawSource(&r.requests).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindNode)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, &corev1.Node{},
			reconciler.OwnersOf(r.Northbound, translate.KindNode), join.Holder(k8s.NodeOf).All(r.Client))).
		WithOptions(r.Gate.Workers(workers)).
		Complete(r.Gate.Reconciler(r))
}

// nodeView is the part of a node that the reconciler depends on. It excludes heartbeats.
type nodeView struct {
	nodeFacts
	annotations string
}

// nodeFacts is the part of nodeView that only others write.
type nodeFacts struct {
	internalIPs     string
	trusted, silent bool
}

func viewNode(n *corev1.Node) nodeView {
	_, silent := silentSince(n)
	return nodeView{nodeFacts{ipfamily.Join(k8s.InternalIPs(n)), trusted(n), silent}, viewAnnotations(n)}
}

func viewAnnotations(n *corev1.Node) string {
	var view strings.Builder
	for _, key := range results {
		view.WriteString(n.Annotations[key] + "\x00")
	}
	return view.String()
}

// byOthers filters out updates that only contain this process's own writes. A reconcile at such an update could run before the cache has
// the IP object, and would write that twice.
func (r *Reconciler) byOthers() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := viewNode(e.ObjectOld.(*corev1.Node)), viewNode(e.ObjectNew.(*corev1.Node))
		written, ok := r.written.Load(e.ObjectNew.GetName())
		return before.nodeFacts != after.nodeFacts || !ok || written != after.annotations
	}}
}

var changedIP = predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})

func (r *Reconciler) allNodes(ctx context.Context, _ client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &corev1.NodeList{})
}

// inSubnet enqueues the nodes that claim an address in a subnet of the default VPC.
func (r *Reconciler) inSubnet(_ context.Context, o client.Object) []reconcile.Request {
	var prefixes []netip.Prefix
	for _, s := range lookup.Specs(o.(*kubeovnv1.Subnet)) {
		if lookup.VpcOf(s) == kubeovnv1.DefaultVpc {
			cidrs, _ := ipfamily.ParseCIDRs(s.Spec.CIDRBlock) // the condition of the Subnet reports an error
			prefixes = append(prefixes, cidrs...)
		}
	}
	return k8s.Requests(r.claims.inside(prefixes)...)
}

// inServices enqueues the nodes that claim an address in a ServiceCIDR. The CIDRs of a ServiceCIDR are immutable.
func (r *Reconciler) inServices(_ context.Context, o client.Object) []reconcile.Request {
	return k8s.Requests(r.claims.inside(svc.PrefixesOf(o.(*networkingv1.ServiceCIDR)))...)
}

// rememberAPIServer records the addresses of the API server. It enqueues nothing: a node keeps its address, and other nodes do not get an address of an
// API server for a while after its removal.
func (r *Reconciler) rememberAPIServer(_ context.Context, o client.Object) []reconcile.Request {
	r.apiServers.saw(lookup.EndpointAddresses(o.(*discoveryv1.EndpointSlice)), r.now())
	return nil
}

// Reconcile connects one node.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, req.NamespacedName, node); apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.disconnect(ctx, req.Name)
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("get node %s: %w", req.Name, err)
	}
	own, err := r.addressesOf(ctx, node)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("addresses of node %s: %w", node.Name, err)
	}
	var result ctrl.Result
	if r.report(node, own) {
		result.RequeueAfter = k8s.Periodic(claimRetry)
	}
	if err = r.connect(ctx, node, own); err == nil { // otherwise the rows and the record may still have others
		r.enqueue(r.claims.keep(node.Name, own.own))
	}
	return result, k8s.Unless(err, northbound.ErrWaiting)
}

// connect applies the node's port, and then publishes it in the node's IP object and annotations. The agent waits for these.
func (r *Reconciler) connect(ctx context.Context, node *corev1.Node, own addresses) error {
	subnet, err := join.Read(ctx, r.Client)
	if err != nil {
		return err
	}
	allocation, err := r.allocation(ctx, node, subnet)
	if err != nil {
		return fmt.Errorf("allocate an address for node %s: %w", node.Name, err)
	}
	rows := translate.Node(translate.NodeInputs{
		Name:        node.Name,
		Vpc:         kubeovnv1.DefaultVpc,
		Switch:      kubeovnv1.JoinSubnet,
		MAC:         allocation.MAC,
		Addresses:   allocation.Addresses,
		InternalIPs: own.own,
	})
	if err := r.Northbound.Apply(ctx, translate.NodeOwner(node.Name), rows); err != nil {
		return fmt.Errorf("apply node %s: %w", node.Name, err)
	}
	return errors.Join(r.recordIP(ctx, node, allocation, own), r.annotate(ctx, node, subnet, allocation))
}

// disconnect removes the rows of a deleted node, and frees its allocation and its addresses after that. Its IP object is deleted before another node gets
// the addresses.
func (r *Reconciler) disconnect(ctx context.Context, name string) error {
	if err := r.Northbound.Apply(ctx, translate.NodeOwner(name), nil); err != nil {
		return fmt.Errorf("delete the rows of node %s: %w", name, err)
	}
	port := translate.NodePort(name)
	r.allocations.Release(ctx, name, port)
	r.written.Delete(name)
	ignoredAddresses.Delete(name)
	if err := r.deleteIP(ctx, port, name); err != nil {
		return err
	}
	r.enqueue(r.claims.forget(name))
	return nil
}
