// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// fieldOwner is the field manager of everything the operator writes.
const fieldOwner = client.FieldOwner("kiln-operator")

// objectKey names an object of any kind.
type objectKey struct {
	gvk schema.GroupVersionKind
	client.ObjectKey
}

var secretKind = corev1.SchemeGroupVersion.WithKind("Secret")

// appliedState is the last applied configuration and the resource version that resulted. While both are unchanged, there
// is nothing to send.
type appliedState struct {
	hash            [sha256.Size]byte
	resourceVersion string
}

// apply applies objects server-side, owned by the OVNCluster, and adds them to the pass's inventory. It reverts changes
// of other writers to fields that Kiln sets and leaves all other fields alone, except in containers and volumes that it
// removes. It is idempotent: a second apply sends nothing.
func (r *Reconciler) apply(ctx context.Context, p *pass, objects []render.Object) error {
	for _, o := range objects {
		o.SetOwnerReferences([]metav1.OwnerReference{
			*metav1.NewControllerRef(p.cluster, v1alpha1.GroupVersion.WithKind("OVNCluster")),
		})
		if err := r.applyOne(ctx, p, o); err != nil {
			return err
		}
	}
	return nil
}

// applyOne is apply for one object. It does not set owners.
func (r *Reconciler) applyOne(ctx context.Context, p *pass, o render.Object) error {
	gvk, err := apiutil.GVKForObject(o, r.Scheme())
	if err != nil {
		return fmt.Errorf("find the kind of %T: %w", o, err)
	}
	key := objectKey{gvk, client.ObjectKeyFromObject(o)}
	p.inventory[key] = true
	want, hash, err := applyConfiguration(o, gvk)
	if err != nil {
		return fmt.Errorf("convert %s %s: %w", gvk.Kind, o.GetName(), err)
	}
	live, err := r.cached(ctx, key)
	if err != nil {
		return err
	}
	if live == nil || r.applied[key] != (appliedState{hash, live.GetResourceVersion()}) {
		if err := r.releaseUnwanted(ctx, live, o); err != nil {
			return err
		}
		if err := r.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), fieldOwner, client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %s %s: %w", gvk.Kind, o.GetName(), err)
		}
		if live, err = r.typed(want, gvk); err != nil {
			return err
		}
		if r.applied == nil {
			r.applied = map[objectKey]appliedState{}
		}
		r.applied[key] = appliedState{hash, live.GetResourceVersion()}
	}
	if gvk.Group == appsv1.GroupName {
		p.live[o.GetName()] = live
	}
	return nil
}

// cached returns the object from the cache, or nil on a cache miss.
func (r *Reconciler) cached(ctx context.Context, key objectKey) (client.Object, error) {
	if key.gvk == secretKind {
		secret, err := r.secrets.Cached(ctx, key.Name)
		if secret == nil {
			return nil, err
		}
		return secret, nil
	}
	reader := client.Reader(r.Client)
	var o client.Object
	if r.Scheme().Recognizes(key.gvk) {
		empty, err := r.Scheme().New(key.gvk)
		if err != nil {
			return nil, fmt.Errorf("make an empty %s: %w", key.gvk.Kind, err)
		}
		o = empty.(client.Object)
	} else {
		reader, o = r.cache, untyped(key.gvk) // the client would read this kind from the API server
	}
	err := reader.Get(ctx, key.ObjectKey, o)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %s: %w", key.gvk.Kind, key.Name, err)
	}
	return o, nil
}

func untyped(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u
}

func (r *Reconciler) typed(u *unstructured.Unstructured, gvk schema.GroupVersionKind) (client.Object, error) {
	if !r.Scheme().Recognizes(gvk) {
		return u, nil
	}
	empty, err := r.Scheme().New(gvk)
	if err != nil {
		return nil, fmt.Errorf("make an empty %s: %w", gvk.Kind, err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, empty); err != nil {
		return nil, fmt.Errorf("convert %s %s: %w", gvk.Kind, u.GetName(), err)
	}
	return empty.(client.Object), nil
}

// applyConfiguration returns the object with only the fields that Kiln sets, and a hash of it. Typed objects encode an
// empty status and creationTimestamp, so these are removed.
func applyConfiguration(o render.Object, gvk schema.GroupVersionKind) (*unstructured.Unstructured, [sha256.Size]byte, error) {
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
