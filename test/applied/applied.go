// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package applied compares objects that users apply with what the API server stores, as GitOps controllers do.
package applied

import (
	"context"
	"fmt"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Diff applies an object again with server-side apply as a dry run, and returns how the result differs from the stored object. An error also means
// that another manager of fields has set one of the object's fields to another value.
func Diff(ctx context.Context, c client.Client, object *unstructured.Unstructured, manager string) (string, error) {
	stored := object.DeepCopy()
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), stored); err != nil {
		return "", fmt.Errorf("get %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	again := object.DeepCopy()
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(again), client.FieldOwner(manager), client.DryRunAll); err != nil {
		return "", fmt.Errorf("apply %s %s again: %w", object.GetKind(), object.GetName(), err)
	}
	stored.SetManagedFields(nil)
	again.SetManagedFields(nil)
	return cmp.Diff(stored.Object, again.Object), nil
}
