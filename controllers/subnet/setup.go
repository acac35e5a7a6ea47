// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// usageDelay gathers changes of a subnet's use into one status update.
const usageDelay = time.Second

// SetupWithManager registers the reconciler. It wakes for its Subnet; for other subnets, for nodes and for the API server, whose
// addresses it must not hold; for use of its addresses; and for drift.
func (r *Reconciler) SetupWithManager(_ context.Context, mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		For(&kubeovnv1.Subnet{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(r.rivals), builder.WithPredicates(k8s.Changed(k8s.ViewSubnet))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.aroundNode), builder.WithPredicates(k8s.Changed(viewNode))).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.aroundAPIServer),
			builder.WithPredicates(predicate.NewPredicateFuncs(isOfAPIServer))).
		WatchesRawSource(useOf(r.Allocator)).
		WatchesRawSource(k8s.Drift(r.Northbound, translate.KindSubnet)).
		WatchesRawSource(k8s.Orphans(mgr.GetCache(), r.Gate, &kubeovnv1.Subnet{}, k8s.OwnersOf(r.Northbound, translate.KindSubnet))).
		Complete(r.Gate.Reconciler(r))
	if err != nil {
		return fmt.Errorf("set up the controller of subnets: %w", err)
	}
	return nil
}

// useOf enqueues subnets a moment after their use has changed, once for all changes meanwhile.
func useOf(allocator *ipam.Allocator) source.Source {
	return source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		allocator.Notify(func(subnet string) { q.AddAfter(named(subnet), usageDelay) })
		return nil
	})
}

func viewNode(n *corev1.Node) string { return ipfamily.Join(k8s.InternalIPs(n)) }

// rivals are the other subnets for which a subnet's appearance, change or end may decide: those that overlap with it, and those
// that are wrong so far; and for the nodes' own subnet those private ones that let nodes in.
func (r *Reconciler) rivals(ctx context.Context, o client.Object) []reconcile.Request {
	changed := o.(*kubeovnv1.Subnet)
	cidrs, _ := ipfamily.ParseCIDRs(changed.Spec.CIDRBlock)
	return r.those(ctx, func(s *kubeovnv1.Subnet) bool {
		return s.Name != changed.Name && vpcOf(s) == vpcOf(changed) &&
			(!validated(s) || overlaps(s, cidrs) || s.Spec.Private && changed.Name == kubeovnv1.JoinSubnet)
	})
}

// aroundNode are the subnets that a node's addresses are in, and those that are wrong so far.
func (r *Reconciler) aroundNode(ctx context.Context, o client.Object) []reconcile.Request {
	return r.around(ctx, k8s.InternalIPs(o.(*corev1.Node)))
}

// aroundAPIServer are the subnets that the API server's addresses are in, and those that are wrong so far.
func (r *Reconciler) aroundAPIServer(ctx context.Context, o client.Object) []reconcile.Request {
	return r.around(ctx, endpoints(o.(*discoveryv1.EndpointSlice)))
}

func (r *Reconciler) around(ctx context.Context, addrs []netip.Addr) []reconcile.Request {
	var hosts []netip.Prefix
	for _, addr := range addrs {
		hosts = append(hosts, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return r.those(ctx, func(s *kubeovnv1.Subnet) bool { return !validated(s) || overlaps(s, hosts) })
}

// isOfAPIServer selects the EndpointSlices of the Service `kubernetes`.
func isOfAPIServer(o client.Object) bool {
	return o.GetNamespace() == metav1.NamespaceDefault && o.GetLabels()[discoveryv1.LabelServiceName] == serviceOfAPIServer
}

func (r *Reconciler) those(ctx context.Context, which func(*kubeovnv1.Subnet) bool) []reconcile.Request {
	var subnets kubeovnv1.SubnetList
	if err := r.Client.List(ctx, &subnets, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	for i := range subnets.Items {
		if which(&subnets.Items[i]) {
			requests = append(requests, named(subnets.Items[i].Name))
		}
	}
	return requests
}

// validated reports whether a subnet's present spec was found right.
func validated(s *kubeovnv1.Subnet) bool { return k8s.ViewSubnet(s).Validated }

// overlaps reports whether a subnet shares addresses with any of the prefixes.
func overlaps(s *kubeovnv1.Subnet, prefixes []netip.Prefix) bool {
	own, _ := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
	return slices.ContainsFunc(own, func(a netip.Prefix) bool {
		return slices.ContainsFunc(prefixes, a.Overlaps)
	})
}

func named(subnet string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: subnet}}
}
