// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// FieldOwner is the field manager of everything that kube-ovn-controller writes.
const FieldOwner = client.FieldOwner("kube-ovn-controller")

// Finalizer keeps a deleted object until the controller has cleaned up after it.
const Finalizer = "kubeovn.io/kube-ovn-controller"

// finalizers are Finalizer and the names that older versions of Kube-OVN used.
var finalizers = []string{Finalizer, "kube-ovn-controller", "ovn.kubernetes.io/fip"}

// CreateMissing creates obj unless an object of its name exists; c may be a cache. An existing object is not changed.
func CreateMissing(ctx context.Context, c client.Client, obj client.Object) error {
	known := obj.DeepCopyObject().(client.Object)
	err := c.Get(ctx, client.ObjectKeyFromObject(obj), known)
	if apierrors.IsNotFound(err) {
		err = client.IgnoreAlreadyExists(c.Create(ctx, obj, FieldOwner))
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", obj.GetName(), err)
	}
	return nil
}

// PatchStatus patches the differences between the status of obj and of base, which was read from the cache. It sends nothing if
// they are equal, and a deleted object is not an error. A patch replaces the whole list of conditions, to which several
// reconcilers contribute: a patch with conditions is refused if obj is stale. Any patch is refused if base is older than this
// process's last write: a status that changed back would then look unchanged, and no later event would correct it.
func PatchStatus(ctx context.Context, c client.Client, base, obj client.Object) error {
	if written.newerThan(base) {
		return apierrors.NewConflict(schema.GroupResource{}, obj.GetName(), errStale)
	}
	if equality.Semantic.DeepEqual(base, obj) {
		return nil
	}
	patch := client.MergeFrom(base)
	data, err := patch.Data(obj)
	if err != nil {
		return fmt.Errorf("compare status of %s: %w", obj.GetName(), err)
	}
	if string(data) == "{}" {
		return nil
	}
	if bytes.Contains(data, []byte(`"conditions"`)) {
		if data, err = client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}).Data(obj); err != nil {
			return fmt.Errorf("compare status of %s: %w", obj.GetName(), err)
		}
	}
	err = c.Status().Patch(ctx, obj, client.RawPatch(patch.Type(), data), FieldOwner)
	if err == nil {
		written.add(obj)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patch status of %s: %w", obj.GetName(), err)
	}
	return nil
}

var errStale = errors.New("the cache does not show the last write yet")

// Patch patches the differences between obj and base outside of the status; it sends nothing if they are equal. obj becomes the
// server's response.
func Patch(ctx context.Context, c client.Client, base, obj client.Object) error {
	if equality.Semantic.DeepEqual(base, obj) { // takes a fraction of the time of comparing JSON
		return nil
	}
	patch := client.MergeFrom(base)
	data, err := patch.Data(obj)
	if err != nil {
		return fmt.Errorf("compare %s: %w", obj.GetName(), err)
	}
	if string(data) == "{}" {
		return nil
	}
	if err := c.Patch(ctx, obj, client.RawPatch(patch.Type(), data), FieldOwner); err != nil {
		return fmt.Errorf("patch %s: %w", obj.GetName(), err)
	}
	return nil
}

// PatchWithFinalizer is Patch, and also adds the finalizer in the same request if it is missing. It then fails if obj is stale,
// because a patch replaces the whole list of finalizers.
func PatchWithFinalizer(ctx context.Context, c client.Client, base, obj client.Object) error {
	if !controllerutil.AddFinalizer(obj, Finalizer) {
		return Patch(ctx, c, base, obj)
	}
	if err := c.Patch(ctx, obj, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}), FieldOwner); err != nil {
		return fmt.Errorf("patch %s: %w", obj.GetName(), err)
	}
	return nil
}

// AddFinalizer adds the controller's finalizer to obj if it is missing. It cannot remove other finalizers, because the patch is
// refused if obj is stale.
func AddFinalizer(ctx context.Context, c client.Client, obj client.Object) error {
	return patchFinalizers(ctx, c, obj, func() bool { return controllerutil.AddFinalizer(obj, Finalizer) })
}

// RemoveFinalizer removes the controller's finalizer from obj, also under its older names. A deleted object is not an error.
func RemoveFinalizer(ctx context.Context, c client.Client, obj client.Object) error {
	return client.IgnoreNotFound(patchFinalizers(ctx, c, obj, func() (changed bool) {
		for _, name := range finalizers {
			changed = controllerutil.RemoveFinalizer(obj, name) || changed
		}
		return changed
	}))
}

func patchFinalizers(ctx context.Context, c client.Client, obj client.Object, change func() bool) error {
	base := obj.DeepCopyObject().(client.Object)
	if !change() {
		return nil
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, obj, patch, FieldOwner); err != nil {
		return fmt.Errorf("patch finalizers of %s: %w", obj.GetName(), err)
	}
	return nil
}
