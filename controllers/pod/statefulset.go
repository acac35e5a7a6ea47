// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/leases"
)

// podTypeOf returns the kind of workload that retains a pod's addresses while the pod is absent; empty if no workload recreates the pod
// by name.
func (r *Reconciler) podTypeOf(pod *corev1.Pod) string {
	if r.machineOf(pod) != "" {
		return kubeovnv1.PodTypeVirtualMachine
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && owner.Kind == "StatefulSet" && strings.HasPrefix(owner.APIVersion, "apps/") {
		return kubeovnv1.PodTypeStatefulSet
	}
	return ""
}

// wantedBySet reports whether a StatefulSet will recreate the pod of this name.
func (r *Reconciler) wantedBySet(ctx context.Context, pod types.NamespacedName) (bool, error) {
	owner, ordinal := leases.StatefulSetOf(pod)
	if ordinal < 0 {
		return false, nil
	}
	set, err := k8s.Find[appsv1.StatefulSet](ctx, r.Client, owner, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("get StatefulSet %s: %w", owner, err)
	}
	if set == nil {
		return false, nil
	}
	return set.DeletionTimestamp == nil && ordinalsOf(set).contain(ordinal), nil
}

// ordinals is the half-open range [first, end) of a StatefulSet's ordinals.
type ordinals struct{ first, end int }

func (o ordinals) contain(ordinal int) bool { return o.first <= ordinal && ordinal < o.end }

func ordinalsOf(set *appsv1.StatefulSet) ordinals {
	o := ordinals{}
	if set.Spec.Ordinals != nil {
		o.first = int(set.Spec.Ordinals.Start)
	}
	o.end = o.first + 1
	if set.Spec.Replicas != nil {
		o.end = o.first + int(*set.Spec.Replicas)
	}
	return o
}

// onStatefulSet enqueues absent pods if their StatefulSet may not recreate them.
func (r *Reconciler) onStatefulSet() handler.EventHandler {
	away := func(o client.Object, q k8s.Queue) {
		for _, key := range r.retained.Of(client.ObjectKeyFromObject(o)) {
			q.Add(ctrl.Request{NamespacedName: key})
		}
	}
	return handler.Funcs{
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q k8s.Queue) {
			before, after := e.ObjectOld.(*appsv1.StatefulSet), e.ObjectNew.(*appsv1.StatefulSet)
			if ordinalsOf(before) != ordinalsOf(after) || before.DeletionTimestamp == nil != (after.DeletionTimestamp == nil) {
				away(after, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q k8s.Queue) { away(e.Object, q) },
	}
}
