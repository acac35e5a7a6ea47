// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficmirror

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/reconciler"
	"github.com/kiln-net/kiln/internal/validation"
)

// SetupWithManager registers the reconciler. Changes of a TrafficMirror wake all of them, because their sinks, keys and nodes can conflict. Pods wake the
// TrafficMirrors that select them before or after a change, namespaces those with a selector of namespaces. Drift wakes the owner of the rows.
func (r *Reconciler) SetupWithManager(_ context.Context, mgr ctrl.Manager) error {
	r.pods.Delay, r.pods.Every = 100*time.Millisecond, 2*time.Second
	return ctrl.NewControllerManagedBy(mgr).
		Named("trafficmirror").
		Watches(&kubeovnv1.TrafficMirror{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, r.onPod()).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.withNamespaceSelector), builder.WithPredicates(k8s.Changed(labelsOf))).
		WatchesRawSource(&r.pods).
		WatchesRawSource(&r.again).
		WatchesRawSource(reconciler.Drift(r.Northbound, translate.KindTrafficMirror)).
		WatchesRawSource(reconciler.OrphansOf(mgr, r.Gate, &kubeovnv1.TrafficMirror{}, reconciler.OwnersOf(r.Northbound, translate.KindTrafficMirror))).
		WithOptions(r.Gate.Workers(1)).
		Complete(r.Gate.Reconciler(r))
}

// all returns all TrafficMirrors, and the one that changed, which may be deleted.
func (r *Reconciler) all(ctx context.Context, o client.Object) []reconcile.Request {
	return append(k8s.Listed(ctx, r.Client, &kubeovnv1.TrafficMirrorList{}), k8s.Request(o.GetName()))
}

func labelsOf(o client.Object) string { return labels.Set(o.GetLabels()).String() }

func (r *Reconciler) withNamespaceSelector(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.matching(ctx, func(namespaces, _ labels.Selector) bool { return !namespaces.Empty() })
}

// matching returns the TrafficMirrors for whose applied selectors a function returns true.
func (r *Reconciler) matching(ctx context.Context, of func(namespaces, pods labels.Selector) bool) (requests []reconcile.Request) {
	var list kubeovnv1.TrafficMirrorList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	for i := range list.Items {
		spec := appliedSpec(&list.Items[i])
		if spec == nil {
			continue
		}
		if namespaces, pods, _ := validation.TrafficMirror(spec); of(namespaces, pods) {
			requests = append(requests, k8s.Request(list.Items[i].Name))
		}
	}
	return requests
}

// onPod requests the TrafficMirrors whose selector matches the labels of a pod with a port, before or after a change of its port, node, labels or VPC. A pass
// reads all pods, so changes of pods within two seconds share one.
func (r *Reconciler) onPod() handler.EventHandler {
	enqueue := func(ctx context.Context, states ...*corev1.Pod) {
		unchanged := sync.OnceValue(func() bool { return len(states) == 2 && viewPod(states[0]) == viewPod(states[1]) }) // not without a TrafficMirror
		for _, req := range r.matching(ctx, func(_, pods labels.Selector) bool {
			return !unchanged() && slices.ContainsFunc(states, func(pod *corev1.Pod) bool { return connected(pod) && pods.Matches(labels.Set(pod.Labels)) })
		}) {
			r.pods.Changed(req.Name)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, _ k8s.Queue) { enqueue(ctx, e.Object.(*corev1.Pod)) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, _ k8s.Queue) { enqueue(ctx, e.Object.(*corev1.Pod)) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ k8s.Queue) {
			enqueue(ctx, e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod))
		},
	}
}

// podView is the part of a pod that decides about its port.
type podView struct {
	connected                          bool
	port, node, vpc, addresses, labels string
}

func viewPod(pod *corev1.Pod) podView {
	return podView{
		connected(pod), kubeovnv1.PortOf(pod, kubeovnv1.ProviderOVN).Name, pod.Spec.NodeName, pod.Annotations[keyVpc], pod.Annotations[keyAddresses], labelsOf(pod),
	}
}
