// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workload applies the objects that a controller builds for one owner, deletes those that it no longer builds, and reads how far their
// workloads are. Applier has the connection and the memory of a process; Set has the objects of one owner in one reconciliation.
package workload

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Object is any API object.
type Object = interface {
	metav1.Object
	runtime.Object
}

// Applier applies and deletes objects. It is not safe for concurrent use.
type Applier struct {
	Client client.Client
	// APIReader bypasses the cache.
	APIReader client.Reader
	// Cache reads every applied kind from a cache, also kinds without a Go type, which Client would read from the API server.
	Cache client.Reader
	// FieldOwner is the field manager of all writes.
	FieldOwner client.FieldOwner

	applied map[key]appliedState
}

// key names an object of any kind.
type key struct {
	gvk schema.GroupVersionKind
	client.ObjectKey
}

// appliedState is the last applied configuration and the resource version that resulted. While both are unchanged, there
// is nothing to send.
type appliedState struct {
	hash            [sha256.Size]byte
	resourceVersion string
}

// Set is the objects of one owner in one reconciliation.
type Set struct {
	*Applier
	owner     client.Object
	reference metav1.OwnerReference
	// inventory has the objects that were applied.
	inventory map[key]bool
	// live are the applied workloads as the API server returned them. The cache may still be stale.
	live map[string]client.Object
}

// For begins a reconciliation of an owner.
func (a *Applier) For(owner client.Object, kind schema.GroupVersionKind) *Set {
	return &Set{
		Applier: a, owner: owner, reference: *metav1.NewControllerRef(owner, kind), inventory: map[key]bool{}, live: map[string]client.Object{},
	}
}

// Forget drops the memory of earlier writes: the next reconciliation sends every object again.
func (a *Applier) Forget() { a.applied = nil }

// Apply applies objects server-side, controlled by the owner, and adds them to the inventory. It reverts changes
// of other writers to fields that the objects set and leaves all other fields alone, except in containers and volumes that it
// removes. It is idempotent: a second Apply sends nothing.
func (s *Set) Apply(ctx context.Context, objects ...Object) error {
	for _, o := range objects {
		o.SetOwnerReferences([]metav1.OwnerReference{s.reference})
		if err := s.ApplyUnowned(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// ApplyUnowned is Apply for an object that outlives its owner.
func (s *Set) ApplyUnowned(ctx context.Context, o Object) error {
	gvk, err := apiutil.GVKForObject(o, s.Client.Scheme())
	if err != nil {
		return fmt.Errorf("find the kind of %T: %w", o, err)
	}
	k := key{gvk, client.ObjectKeyFromObject(o)}
	s.inventory[k] = true
	want, hash, err := applyConfiguration(o, gvk)
	if err != nil {
		return fmt.Errorf("convert %s %s: %w", gvk.Kind, o.GetName(), err)
	}
	live, err := s.Cached(ctx, gvk, k.ObjectKey)
	if err != nil {
		return err
	}
	if live == nil || s.applied[k] != (appliedState{hash, live.GetResourceVersion()}) {
		if err := s.releaseUnwanted(ctx, live, o); err != nil {
			return err
		}
		if err := s.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), s.FieldOwner, client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %s %s: %w", gvk.Kind, o.GetName(), err)
		}
		if live, err = s.typed(want, gvk); err != nil {
			return err
		}
		if s.applied == nil {
			s.applied = map[key]appliedState{}
		}
		s.applied[k] = appliedState{hash, live.GetResourceVersion()}
	}
	if gvk.Group == appsv1.GroupName {
		s.live[o.GetName()] = live
	}
	return nil
}

// Live returns a workload as this reconciliation applied it, or nil.
func (s *Set) Live(name string) client.Object { return s.live[name] }

// Workload returns a workload of group apps as this reconciliation applied it, or from the cache. It returns nil if there is none.
func (s *Set) Workload(ctx context.Context, kind string, name client.ObjectKey) (client.Object, error) {
	if live := s.live[name.Name]; live != nil {
		return live, nil
	}
	return s.Cached(ctx, appsv1.SchemeGroupVersion.WithKind(kind), name)
}

// Cached returns an object from the cache, or nil on a cache miss.
func (a *Applier) Cached(ctx context.Context, gvk schema.GroupVersionKind, name client.ObjectKey) (client.Object, error) {
	o, err := a.empty(gvk)
	if err != nil {
		return nil, err
	}
	err = a.Cache.Get(ctx, name, o)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %s: %w", gvk.Kind, name.Name, err)
	}
	return o, nil
}

// empty returns an object of a kind: of its Go type, or unstructured if it has none.
func (a *Applier) empty(gvk schema.GroupVersionKind) (client.Object, error) {
	if !a.Client.Scheme().Recognizes(gvk) {
		return Untyped(gvk), nil
	}
	o, err := a.Client.Scheme().New(gvk)
	if err != nil {
		return nil, fmt.Errorf("make an empty %s: %w", gvk.Kind, err)
	}
	return o.(client.Object), nil
}

// Untyped returns an empty object of a kind without a Go type.
func Untyped(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u
}

func (a *Applier) typed(u *unstructured.Unstructured, gvk schema.GroupVersionKind) (client.Object, error) {
	o, err := a.empty(gvk)
	if _, untyped := o.(*unstructured.Unstructured); untyped || err != nil {
		return u, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return nil, fmt.Errorf("convert %s %s: %w", gvk.Kind, u.GetName(), err)
	}
	return o, nil
}

// applyConfiguration returns the object with only the fields that its builder set, and a hash of it. Typed objects encode an
// empty status and creationTimestamp, so these are removed.
func applyConfiguration(o Object, gvk schema.GroupVersionKind) (*unstructured.Unstructured, [sha256.Size]byte, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, [sha256.Size]byte{}, fmt.Errorf("to unstructured: %w", err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(gvk)
	unstructured.RemoveNestedField(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(content, "spec", "template", "metadata", "creationTimestamp")
	encoded, err := json.Marshal(content)
	if err != nil {
		return nil, [sha256.Size]byte{}, fmt.Errorf("encode: %w", err)
	}
	return u, sha256.Sum256(encoded), nil
}
