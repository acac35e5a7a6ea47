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

// Finalizer keeps an object until the controller has cleaned up after it.
const Finalizer = "kubeovn.io/kube-ovn-controller"

// CreateMissing creates obj where c, which may be a cache, knows none of its name. One that is there is left as it is.
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

// PatchStatus sends how the status of obj differs from that of base, which was read from the cache. It sends nothing when they
// are equal, and an object that is gone is no error. A patch replaces the whole list of conditions, to which several reconcilers may
// contribute: one that changes them is refused when obj is not the newest. So is any when base is from before what this process wrote last:
// a status that went back to what it was would look as if there were nothing to send, and no event would tell otherwise.
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

var errStale = errors.New("the cache does not show yet what was written last")

// Patch sends how obj differs from base outside of its status, and nothing when they are equal. obj becomes what the server returns.
func Patch(ctx context.Context, c client.Client, base, obj client.Object) error {
	if equality.Semantic.DeepEqual(base, obj) { // a fraction of the time that comparing JSON takes
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

// PatchWithFinalizer is Patch, and gives obj the finalizer in the same request when it has none. It fails when obj is not the newest then:
// finalizers are a list, which a patch replaces.
func PatchWithFinalizer(ctx context.Context, c client.Client, base, obj client.Object) error {
	if !controllerutil.AddFinalizer(obj, Finalizer) {
		return Patch(ctx, c, base, obj)
	}
	if err := c.Patch(ctx, obj, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}), FieldOwner); err != nil {
		return fmt.Errorf("patch %s: %w", obj.GetName(), err)
	}
	return nil
}

// AddFinalizer adds the controller's finalizer to obj, if it is not there. Others' finalizers are safe: the patch is refused
// when obj is not the newest.
func AddFinalizer(ctx context.Context, c client.Client, obj client.Object) error {
	return patchFinalizer(ctx, c, obj, controllerutil.AddFinalizer)
}

// RemoveFinalizer takes the controller's finalizer from obj, if it is there. An object that is gone is no error.
func RemoveFinalizer(ctx context.Context, c client.Client, obj client.Object) error {
	return client.IgnoreNotFound(patchFinalizer(ctx, c, obj, controllerutil.RemoveFinalizer))
}

func patchFinalizer(ctx context.Context, c client.Client, obj client.Object, change func(client.Object, string) bool) error {
	base := obj.DeepCopyObject().(client.Object)
	if !change(obj, Finalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, obj, patch, FieldOwner); err != nil {
		return fmt.Errorf("patch finalizers of %s: %w", obj.GetName(), err)
	}
	return nil
}
