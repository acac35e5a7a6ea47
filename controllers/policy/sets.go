// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// setupSets adds the controller of sets of pods. It also forwards namespaces to the index, because no other controller follows their
// labels.
func (r *Reconciler) setupSets(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("podset").
		WatchesRawSource(&r.sets).
		Watches(&corev1.Namespace{}, r.onNamespace()).
		Watches(&kubeovnv1.IP{}, handler.EnqueueRequestsFromMapFunc(r.setsOnNode), builder.WithPredicates(k8s.NodeRecords(k8s.Changed(addressesOf)))).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindPodSet)).
		WatchesRawSource(reconciler.Orphans(mgr.GetCache(), r.Gate, &networkingv1.NetworkPolicy{},
			reconciler.OwnersOf(r.Northbound, translate.KindPodSet), r.inUse)).
		WithOptions(r.Gate.Workers(workers)).
		Complete(r.Gate.Reconciler(reconcile.Func(r.reconcileSet)))
}

// onNamespace updates the index. It enqueues nothing: the index reports the affected sets and policies (changed).
func (r *Reconciler) onNamespace() handler.EventHandler {
	set := func(o client.Object) { r.Sets.SetNamespace(o.GetName(), o.GetLabels()) }
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ k8s.Queue) { set(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ k8s.Queue) { set(e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ k8s.Queue) { r.Sets.DeleteNamespace(e.Object.GetName()) },
	}
}

// setsOnNode enqueues the sets that contain a node's addresses because of its host-network pods.
func (r *Reconciler) setsOnNode(_ context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, s := range r.Sets.SetsOnNode(k8s.NodeOf(o.(*kubeovnv1.IP))) {
		requests = append(requests, k8s.Request(s.Name()))
	}
	return requests
}

// inUse returns the names of the sets that policies use; all others are orphans.
func (r *Reconciler) inUse(context.Context) ([]types.NamespacedName, error) {
	var names []types.NamespacedName
	for _, s := range r.Sets.InUse() {
		names = append(names, types.NamespacedName{Name: s.Name()})
	}
	return names, nil
}

// reconcileSet applies the rows of one set. Rows of the pods add the members.
func (r *Reconciler) reconcileSet(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var rows []desired.Row
	s, ok := r.Sets.Lookup(req.Name)
	if ok && s.HasRows() {
		in := translate.PodSetInputs{
			Name: req.Name, Selector: s.String(), Subjects: s.Role == podset.Subjects, Numbers: []int32{0},
		}
		if s.Port != "" {
			in.Numbers = r.Sets.Numbers(s)
		}
		var err error
		if in.HostAddresses, err = r.hostAddresses(ctx, s); err != nil {
			return ctrl.Result{}, err
		}
		rows = translate.PodSet(in)
	}
	if err := r.Northbound.Apply(ctx, translate.PodSetOwner(req.Name), rows); err != nil {
		return ctrl.Result{}, fmt.Errorf("apply set of pods: %w", err)
	}
	if len(rows) > 0 {
		r.Sets.Stored(s)
	}
	return ctrl.Result{}, nil
}

// hostAddresses returns, by port number, the addresses of the nodes whose host-network pods are in a set.
func (r *Reconciler) hostAddresses(ctx context.Context, s podset.Selector) (map[int32][]netip.Addr, error) {
	addresses := map[int32][]netip.Addr{}
	for number, nodes := range r.Sets.HostNodes(s) {
		for _, name := range nodes {
			own, err := r.addressesOfNode(ctx, name)
			if err != nil {
				return nil, err
			}
			addresses[number] = append(addresses[number], own...)
		}
	}
	return addresses, nil
}

// addressesOfNode returns nodeAddresses of a node, nil before its port is applied.
func (r *Reconciler) addressesOfNode(ctx context.Context, node string) ([]netip.Addr, error) {
	ip, err := k8s.Find[kubeovnv1.IP](ctx, r.Client, client.ObjectKey{Name: kubeovnv1.NodePortName(node)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get the IP object of node %s: %w", node, err)
	}
	if ip == nil {
		return nil, nil
	}
	return nodeAddresses(ip), nil
}

// nodeAddresses returns the addresses from which processes on a node connect to pods: its own and its port's, by the IP object of the port.
func nodeAddresses(ip *kubeovnv1.IP) []netip.Addr {
	if k8s.NodeOf(ip) == "" {
		return nil
	}
	addresses := append(ipfamily.ValidAddrs(strings.Split(ip.Spec.IPAddress, ",")...), k8s.AddressesOfNode(ip)...)
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}

// addressesOf returns the fields of a node's IP object that policies depend on.
func addressesOf(ip *kubeovnv1.IP) string { return ipfamily.Join(nodeAddresses(ip)) }

// isolation is the only request key of the isolation controller.
const isolation = "pods"

// setupIsolation adds the controller of traffic that passes regardless of policies. It is enqueued at the start, for changes of nodes, when
// sets are created or deleted, and when the first pod names security groups or the last one stops.
func (r *Reconciler) setupIsolation(mgr ctrl.Manager) error {
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return k8s.Requests(isolation)
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("isolation").
		Watches(&kubeovnv1.IP{}, one, builder.WithPredicates(k8s.NodeRecords(k8s.Changed(addressesOf)))).
		WatchesRawSource(source.Func(func(_ context.Context, q k8s.Queue) error {
			q.Add(k8s.Request(isolation)) // the last policy may have been deleted before the start
			r.Sets.Observe(func(c podset.Changes) {
				if len(c.Sets) > 0 || c.Grouped {
					q.Add(k8s.Request(isolation))
				}
			})
			return nil
		})).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindIsolation)).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(reconcile.Func(r.reconcileIsolation)))
}

// reconcileIsolation applies the rows of traffic that passes regardless of policies. They exist while there is any policy or any pod in a
// security group.
func (r *Reconciler) reconcileIsolation(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	var rows []desired.Row
	if grouped := r.Sets.Grouped(); grouped || len(r.Sets.InUse()) > 0 {
		var list corev1.NodeList
		if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return ctrl.Result{}, fmt.Errorf("list nodes: %w", err)
		}
		var nodes []translate.PolicyNode
		for i := range list.Items {
			name := list.Items[i].Name
			addresses, err := r.addressesOfNode(ctx, name)
			if err != nil {
				return ctrl.Result{}, err
			}
			nodes = append(nodes, translate.PolicyNode{Name: name, Addresses: addresses})
		}
		slices.SortFunc(nodes, func(a, b translate.PolicyNode) int { return strings.Compare(a.Name, b.Name) })
		rows = translate.Isolation(translate.IsolationInputs{Nodes: nodes, Grouped: grouped})
	}
	err := r.Northbound.Apply(ctx, translate.IsolationOwner(), rows)
	if err != nil && !errors.Is(err, northbound.ErrWaiting) {
		return ctrl.Result{}, fmt.Errorf("apply what passes whatever policies say: %w", err)
	}
	return ctrl.Result{}, nil
}
