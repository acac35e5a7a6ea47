// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Prune deletes the objects of a kind that the owner controls and this reconciliation did not apply. It finds them in the cache by these options.
func (s *Set) Prune(ctx context.Context, kind client.Object, options ...client.ListOption) error {
	gvk, err := apiutil.GVKForObject(kind, s.Client.Scheme())
	if err != nil {
		return fmt.Errorf("find the kind of %T: %w", kind, err)
	}
	list, err := s.emptyList(gvk)
	if err != nil {
		return err
	}
	if err := s.Cache.List(ctx, list, options...); err != nil {
		return fmt.Errorf("list %s: %w", gvk.Kind, err)
	}
	return meta.EachListItem(list, func(o runtime.Object) error { return s.pruneOne(ctx, o.(client.Object), gvk) })
}

// PruneNamed is Prune for one object, if it exists.
func (s *Set) PruneNamed(ctx context.Context, gvk schema.GroupVersionKind, name client.ObjectKey) error {
	o, err := s.Cached(ctx, gvk, name)
	if o == nil || err != nil {
		return err
	}
	return s.pruneOne(ctx, o, gvk)
}

func (s *Set) pruneOne(ctx context.Context, o client.Object, gvk schema.GroupVersionKind) error {
	if s.inventory[key{gvk, client.ObjectKeyFromObject(o)}] || !metav1.IsControlledBy(o, s.owner) || !o.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return s.Delete(ctx, o)
}

// Delete deletes exactly this object, not a new object with the same name, and its dependents in the background.
func (a *Applier) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	uid := o.GetUID()
	options = append(options, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	err := a.Client.Delete(ctx, o, options...)
	if client.IgnoreNotFound(err) != nil {
		gvk, _ := apiutil.GVKForObject(o, a.Client.Scheme())
		return fmt.Errorf("delete %s %s: %w", gvk.Kind, o.GetName(), err)
	}
	return nil
}

func (a *Applier) emptyList(gvk schema.GroupVersionKind) (client.ObjectList, error) {
	gvk.Kind += "List"
	if !a.Client.Scheme().Recognizes(gvk) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		return list, nil
	}
	list, err := a.Client.Scheme().New(gvk)
	if err != nil {
		return nil, fmt.Errorf("make an empty %s: %w", gvk.Kind, err)
	}
	return list.(client.ObjectList), nil
}
