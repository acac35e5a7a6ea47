// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// indexSubnet finds pods by the subnet that their annotations name.
const indexSubnet = "pod.subnet"

// SetupWithManager adds the controllers of pods and of their IP objects. Call it once, before the manager starts.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, indexSubnet, subnetOf); err != nil {
		return fmt.Errorf("index pods by subnet: %w", err)
	}
	r.Allocator.Notify(r.waiting.subnetChanged)
	err := ctrl.NewControllerManagedBy(mgr).
		Named("pod").
		For(&corev1.Pod{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: changesPort})).
		Watches(&kubeovnv1.Subnet{}, r.onSubnet()).
		Watches(&kubeovnv1.Vpc{}, r.onVpc()).
		Watches(&corev1.Namespace{}, r.onNamespace()).
		WatchesRawSource(&r.waiting.feed).
		WatchesRawSource(k8s.Drift(r.Northbound, translate.KindPod)).
		WatchesRawSource(k8s.Orphans(mgr.GetCache(), r.Gate, &corev1.Pod{}, k8s.OwnersOf(r.Northbound, translate.KindPod))).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Workers}).
		Complete(r.Gate.Reconciler(r))
	if err != nil {
		return fmt.Errorf("add the controller of pods: %w", err)
	}
	return r.setupRecords(mgr)
}

func subnetOf(o client.Object) []string {
	subnet := o.GetAnnotations()[kubeovnv1.AnnotationLogicalSwitch.Key()]
	if subnet == "" {
		return nil
	}
	return []string{subnet}
}

// changesPort drops the many updates of a pod's status that its port does not depend on.
func changesPort(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
	return before.UID != after.UID || onPodNetwork(before) != onPodNetwork(after) ||
		before.Spec.NodeName != after.Spec.NodeName || !sameNetworkAnnotations(before, after)
}

// onSubnet enqueues the pods of a subnet when what they know of it changes, and those that wait when any subnet does.
func (r *Reconciler) onSubnet() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(context.Context, event.CreateEvent, queue) { r.waiting.wakeAll() },
		DeleteFunc: func(context.Context, event.DeleteEvent, queue) { r.waiting.wakeAll() },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, after := e.ObjectOld.(*kubeovnv1.Subnet), e.ObjectNew.(*kubeovnv1.Subnet)
			if viewSubnet(before) == viewSubnet(after) {
				return
			}
			r.waiting.wakeAll()
			if podView(before) != podView(after) {
				r.enqueuePodsOf(ctx, after.Name, q)
			}
		},
	}
}

// subnetView is what pods that wait look at in subnets: not their counts.
type subnetView struct {
	k8s.SubnetView
	deleting bool
}

func viewSubnet(s *kubeovnv1.Subnet) subnetView {
	return subnetView{k8s.ViewSubnet(s), s.DeletionTimestamp != nil}
}

// podView is what a pod's port and annotations depend on of its subnet.
func podView(s *kubeovnv1.Subnet) [5]string {
	return [5]string{s.Spec.CIDRBlock, s.Spec.Gateway, s.Spec.Vpc, string(s.Spec.GatewayType), fmt.Sprint(s.Spec.MTU)}
}

func (r *Reconciler) enqueuePodsOf(ctx context.Context, subnet string, q queue) {
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.MatchingFields{indexSubnet: subnet}, client.UnsafeDisableDeepCopy)
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot list the pods of a subnet", "subnet", subnet)
		return
	}
	for i := range pods.Items {
		q.Add(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&pods.Items[i])})
	}
}

// onVpc wakes the pods that wait when the subnets of namespaces may have changed.
func (r *Reconciler) onVpc() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(context.Context, event.CreateEvent, queue) { r.waiting.wakeAll() },
		DeleteFunc: func(context.Context, event.DeleteEvent, queue) { r.waiting.wakeAll() },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) {
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() {
				r.waiting.wakeAll()
			}
		},
	}
}

// onNamespace wakes those pods of a namespace that wait: its labels decide which subnets select it.
func (r *Reconciler) onNamespace() handler.EventHandler {
	wake := func(o client.Object) { r.waiting.wakeNamespace(o.GetName()) }
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) { wake(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) { wake(e.ObjectNew) },
	}
}
