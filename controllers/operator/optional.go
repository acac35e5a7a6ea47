// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

// defined reports whether the definition of an optional kind exists.
func (r *Reconciler) defined(ctx context.Context, name string) (bool, error) {
	d := definition(name)
	err := r.Get(ctx, client.ObjectKeyFromObject(d), d)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("look for the definition %s: %w", name, err)
	}
	return err == nil, nil
}

// watch starts watches of the operator's objects of optional kinds.
func (r *Reconciler) watch(kinds ...schema.GroupVersionKind) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[render.ManagedByLabel] == render.ManagedBy })
	for _, kind := range kinds {
		if r.watched[kind] {
			continue
		}
		if err := r.controller.Watch(source.Kind[client.Object](r.cache, untyped(kind), theCluster, ours)); err != nil {
			return fmt.Errorf("watch %s: %w", kind.Kind, err)
		}
		if r.watched == nil {
			r.watched = map[schema.GroupVersionKind]bool{}
		}
		r.watched[kind] = true
	}
	return nil
}

// unwatch stops the watches of optional kinds that are no longer defined or used.
func (r *Reconciler) unwatch(ctx context.Context, kinds ...schema.GroupVersionKind) error {
	for _, kind := range kinds {
		if !r.watched[kind] {
			continue
		}
		if err := r.cache.RemoveInformer(ctx, untyped(kind)); err != nil {
			return fmt.Errorf("stop watching %s: %w", kind.Kind, err)
		}
		delete(r.watched, kind)
	}
	return nil
}
