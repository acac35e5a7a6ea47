// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package unimplemented reports in a condition that objects of kinds without a controller have no effect.
package unimplemented

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Reconciler writes the condition Ready=False, reason NotImplemented, to the objects of kubeovnv1.UnimplementedKinds. It removes Kube-OVN's
// finalizers from deleted objects: no other controller does.
type Reconciler struct {
	Client   client.Client
	Recorder events.EventRecorder

	cache client.Reader // the client does not read unstructured objects from the cache
}

// request names an object.
type request struct {
	kind *kubeovnv1.Kind
	types.NamespacedName
}

// SetupWithManager registers the reconciler. It skips a kind that the process may not list when it starts, or whose CRD does not exist: an informer
// that never syncs would end the process, and with it the network of new pods.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	r.cache = mgr.GetCache()
	b := builder.TypedControllerManagedBy[request](mgr).Named("unimplemented")
	watched := false
	for _, kind := range kubeovnv1.UnimplementedKinds {
		object := newObject(kind)
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(kubeovnv1.GroupVersion.WithKind(kind.Kind + "List"))
		switch err := mgr.GetAPIReader().List(ctx, &list, client.Limit(1)); {
		case meta.IsNoMatchError(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
			ctrl.LoggerFrom(ctx).Info("objects of a kind cannot be read: apply the manifests of this version and restart the controller",
				"kind", kind.Kind, "error", err.Error())
			continue
		case err != nil:
			return fmt.Errorf("list objects of kind %s: %w", kind.Kind, err)
		}
		watched = true
		b = b.WatchesRawSource(source.TypedKind(mgr.GetCache(), object, handler.TypedEnqueueRequestsFromMapFunc(
			func(_ context.Context, o *unstructured.Unstructured) []request {
				return []request{{kind, client.ObjectKeyFromObject(o)}}
			})))
	}
	if !watched {
		return nil
	}
	return b.Complete(r)
}

// Reconcile brings the status of one object up to date, or removes the finalizers of a deleted one.
func (r *Reconciler) Reconcile(ctx context.Context, req request) (ctrl.Result, error) {
	object := newObject(req.kind)
	if err := r.cache.Get(ctx, req.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if object.GetDeletionTimestamp() != nil {
		return ctrl.Result{}, k8s.RemoveFinalizer(ctx, r.Client, object)
	}
	return ctrl.Result{}, r.patchStatus(ctx, object, req.kind)
}

// status is what the kinds have in common.
type status struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	Ready      *bool              `json:"ready,omitempty"`
}

// patchStatus replaces all conditions: those of other controllers no longer hold.
func (r *Reconciler) patchStatus(ctx context.Context, object *unstructured.Unstructured, kind *kubeovnv1.Kind) error {
	before, _, err := unstructured.NestedMap(object.Object, "status")
	if err != nil {
		return fmt.Errorf("read status of %s %s: %w", kind.Kind, object.GetName(), err)
	}
	var s status
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(before, &s); err != nil {
		return fmt.Errorf("read status of %s %s: %w", kind.Kind, object.GetName(), err)
	}
	var next status
	if old := meta.FindStatusCondition(s.Conditions, kubeovnv1.ConditionReady); old != nil {
		next.Conditions = []metav1.Condition{*old} // keeps its lastTransitionTime
	}
	k8s.SetConditions(&next.Conditions, object.GetGeneration(), k8s.NotReady(kubeovnv1.ReasonNotImplemented,
		"this version of Kiln does not implement the kind "+kind.Kind+": the object has no effect"))
	if kind.StatusReady {
		next.Ready = new(bool)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&next)
	if err != nil {
		return fmt.Errorf("convert status of %s %s: %w", kind.Kind, object.GetName(), err)
	}
	base := object.DeepCopy()
	for name, value := range fields {
		if err := unstructured.SetNestedField(object.Object, value, "status", name); err != nil {
			return fmt.Errorf("change status of %s %s: %w", kind.Kind, object.GetName(), err)
		}
	}
	if err := k8s.PatchStatus(ctx, r.Client, base, object); err != nil {
		return err
	}
	k8s.WarnAnew(r.Recorder, object, s.Conditions, next.Conditions, kubeovnv1.ConditionReady)
	return nil
}

func newObject(kind *kubeovnv1.Kind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kubeovnv1.GroupVersion.WithKind(kind.Kind))
	return object
}
