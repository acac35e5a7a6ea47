// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/workload"
)

// optionalKinds starts the watches of kinds that the API server may not serve, once a pass needs them: an informer of a kind that is not served would
// keep the operator from starting.
type optionalKinds struct {
	client.Client
	// APIReader bypasses the cache.
	APIReader client.Reader
	namespace string
	cache     cache.Cache
	// controller enqueues the OVNCluster.
	controller controller.Controller
	// watched has the kinds of cert-manager and of the Prometheus operator whose changes trigger passes.
	watched map[schema.GroupVersionKind]bool
	// watchesPolicies is set when changes of admission policies trigger passes.
	watchesPolicies bool
}

// defined reports whether the definition of an optional kind exists.
func (k *optionalKinds) defined(ctx context.Context, name string) (bool, error) {
	d := definition(name)
	err := k.Get(ctx, client.ObjectKeyFromObject(d), d)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("look for the definition %s: %w", name, err)
	}
	return err == nil, nil
}

// watch starts watches of the operator's objects of optional kinds.
func (k *optionalKinds) watch(kinds ...schema.GroupVersionKind) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[render.ManagedByLabel] == render.ManagedBy })
	for _, kind := range kinds {
		if k.watched[kind] {
			continue
		}
		if err := k.controller.Watch(source.Kind[client.Object](k.cache, workload.Untyped(kind), theCluster, ours)); err != nil {
			return fmt.Errorf("watch %s: %w", kind.Kind, err)
		}
		if k.watched == nil {
			k.watched = map[schema.GroupVersionKind]bool{}
		}
		k.watched[kind] = true
	}
	return nil
}

// unwatch stops the watches of optional kinds that are no longer defined or used.
func (k *optionalKinds) unwatch(ctx context.Context, kinds ...schema.GroupVersionKind) error {
	for _, kind := range kinds {
		if !k.watched[kind] {
			continue
		}
		if err := k.cache.RemoveInformer(ctx, workload.Untyped(kind)); err != nil {
			return fmt.Errorf("stop watching %s: %w", kind.Kind, err)
		}
		delete(k.watched, kind)
	}
	return nil
}

// watchServed starts the watch of a kind, once the operator may read it.
func (k *optionalKinds) watchServed(ctx context.Context, kind schema.GroupVersionKind) error {
	if k.watched[kind] {
		return nil
	}
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(kind)
	if err := k.APIReader.List(ctx, &list, client.InNamespace(k.namespace), client.Limit(1)); err != nil {
		return fmt.Errorf("list %s: %w", kind.Kind, err)
	}
	return k.watch(kind)
}

// watchPolicies starts the watches of policies, once they are served and the operator may read them.
func (k *optionalKinds) watchPolicies(ctx context.Context) error {
	if k.watchesPolicies {
		return nil
	}
	for _, kind := range policyKinds() {
		gvk, err := apiutil.GVKForObject(kind, k.Scheme())
		if err != nil {
			return fmt.Errorf("find the kind of %T: %w", kind, err)
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err := k.APIReader.List(ctx, list, client.Limit(1)); err != nil {
			return fmt.Errorf("list %s: %w", gvk.Kind, err)
		}
	}
	for _, kind := range policyKinds() {
		if err := k.controller.Watch(source.Kind(k.cache, kind, theCluster)); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	k.watchesPolicies = true
	return nil
}
