// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package transit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/join"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// workers is the number of VPCs that are reconciled in parallel. A failed node may serve many VPCs, which then move in few transactions.
const workers = 16

// subnetsDelay batches changes of the subnets of a VPC: each change of its routes costs ovn-northd a full computation.
const subnetsDelay = 200 * time.Millisecond

// indexNode is an index of VPCs by the nodes of their pairs. VPCs that lack a node are listed under the empty name.
const indexNode = "transit.node"

// SetupWithManager registers the reconciler. It enqueues a Vpc for changes of: the Vpc and its subnets; the nodes of its pair and their
// Leases; its IP object; the join subnet; and drift of its rows. Changes of other nodes enqueue only VPCs that lack a node.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	r.allocations.Allocator = r.Allocator
	r.Leases.Subscribe(func(node string) {
		for _, vpc := range append(r.carriedBy(ctx, node), r.carriedBy(ctx, "")...) {
			r.moved.Add(vpc)
		}
	})
	err := mgr.GetFieldIndexer().IndexField(ctx, &kubeovnv1.Vpc{}, indexNode, func(o client.Object) []string {
		if vpc := o.(*kubeovnv1.Vpc); r.needsGateway(vpc) {
			return []string{pairOf(vpc).Active, pairOf(vpc).Standby}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index VPCs by node: %w", err)
	}
	b := ctrl.NewControllerManagedBy(mgr)
	if r.ServiceCIDRs.Served() {
		b = b.Watches(&networkingv1.ServiceCIDR{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	return b.
		Named("transit").
		For(&kubeovnv1.Vpc{}, builder.WithPredicates(k8s.Changed(viewVpc))).
		Watches(&kubeovnv1.Subnet{}, r.onSubnet(), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.onNode), builder.WithPredicates(k8s.Changed(viewNode))).
		WatchesRawSource(join.Holder(vpcOf).Source(mgr.GetCache(), r.Gate, predicate.GenerationChangedPredicate{})).
		WatchesRawSource(&r.moved).
		WatchesRawSource(r.allocations.Source()).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindTransit)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, &kubeovnv1.Vpc{},
			reconciler.OwnersOf(r.Northbound, translate.KindTransit), join.Holder(vpcOf).All(r.Client))).
		WithOptions(r.Gate.Workers(workers)).
		Complete(r.Gate.Reconciler(r))
}

// vpcView holds the fields of a Vpc that the reconciler depends on: its spec, the fields in status that it writes, and its external ports.
type vpcView struct {
	k8s.VpcView

	pair      gateway.Pair
	addresses string
	ready     string
	external  string
}

func viewVpc(vpc *kubeovnv1.Vpc) vpcView {
	view := vpcView{VpcView: k8s.ViewVpc(vpc), pair: pairOf(vpc), external: lookup.ViewExternal(vpc)}
	if vpc.Status.Transit != nil {
		view.addresses = strings.Join(vpc.Status.Transit.Addresses, ",")
	}
	if c := apimeta.FindStatusCondition(vpc.Status.Conditions, kubeovnv1.ConditionTransitReady); c != nil {
		view.ready = string(c.Status) + c.Reason + c.Message
	}
	return view
}

// nodeView holds the fields that determine whether a node can forward traffic.
type nodeView struct {
	state gateway.State
	hops  string
}

func viewNode(n *corev1.Node) nodeView {
	return nodeView{state: gateway.StateOf(n, gateway.NoLease), hops: join.Published(n)}
}

// onNode returns the VPCs that use a node, and VPCs that lack a node.
func (r *Reconciler) onNode(ctx context.Context, node client.Object) []reconcile.Request {
	return k8s.Requests(append(r.carriedBy(ctx, node.GetName()), r.carriedBy(ctx, "")...)...)
}

// carriedBy returns the VPCs with a node in their pair; for the empty name, the VPCs that lack a node.
func (r *Reconciler) carriedBy(ctx context.Context, node string) []string {
	var list kubeovnv1.VpcList
	if err := r.Client.List(ctx, &list, client.MatchingFields{indexNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot list the VPCs of a node", "node", node)
		return nil
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// onSubnet enqueues the VPC of a subnet in its last valid spec, before and after the change. For the join subnet it enqueues all VPCs.
func (r *Reconciler) onSubnet() handler.EventHandler {
	enqueue := func(ctx context.Context, q k8s.Queue, o client.Object) {
		if !join.Is(o) {
			if valid := k8s.WithValidSpec(o.(*kubeovnv1.Subnet)); valid != nil {
				q.AddAfter(k8s.Request(lookup.VpcOf(valid)), subnetsDelay)
			}
			return
		}
		for _, req := range r.all(ctx, o) {
			q.Add(req)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q k8s.Queue) { enqueue(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q k8s.Queue) {
			enqueue(ctx, q, e.ObjectOld)
			enqueue(ctx, q, e.ObjectNew)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q k8s.Queue) { enqueue(ctx, q, e.Object) },
	}
}

// all enqueues all VPCs.
func (r *Reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	return k8s.Listed(ctx, r.Client, &kubeovnv1.VpcList{})
}

// objectName returns the name of the IP object of a VPC's gateway router. It cannot conflict with names for pods, which have a dot, or for
// nodes, which have another prefix.
func objectName(vpc string) string {
	const prefix, limit = "transit-", 253 // maximum length of an object name
	if !strings.Contains(vpc, ".") && len(prefix)+len(vpc) <= limit {
		return prefix + vpc
	}
	sum := sha256.Sum256([]byte(vpc))
	return prefix + hex.EncodeToString(sum[:16])
}

// vpcOf returns the VPC of an IP object of a gateway router, or "" for other IP objects.
func vpcOf(ip *kubeovnv1.IP) string {
	if ip.Spec.Namespace != "" || ip.Spec.NodeName != "" || ip.Spec.Subnet != kubeovnv1.JoinSubnet || ip.Name != objectName(ip.Spec.PodName) {
		return ""
	}
	return ip.Spec.PodName
}
