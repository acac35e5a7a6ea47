// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// releaseUnwanted takes from other field managers the containers and volumes of a workload that the Applier applied and no longer wants.
// Server-side apply keeps the fields of an entry that another manager owns too (a server-side apply of its resources), and then the API server
// refuses the rest of the container. With its own manager as the only owner, the next apply removes the entry. The write changes only metadata, so it
// replaces no pod. Entries that it did not apply stay. Without a live workload there is nothing to do.
func (a *Applier) releaseUnwanted(ctx context.Context, live client.Object, want Object) error {
	if live == nil {
		return nil
	}
	unwanted := slices.DeleteFunc(entries(live), func(e fieldpath.Path) bool { return slices.ContainsFunc(entries(want), e.Equals) })
	if len(unwanted) == 0 {
		return nil
	}
	full := live.DeepCopyObject().(client.Object)
	err := a.APIReader.Get(ctx, client.ObjectKeyFromObject(live), full) // the cache has no managed fields
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get %s from the API server: %w", live.GetName(), err)
	}
	managers, err := release(full.GetManagedFields(), unwanted, string(a.FieldOwner))
	if err != nil || managers == nil {
		return err
	}
	change := client.MergeFromWithOptions(full.DeepCopyObject().(client.Object), client.MergeFromWithOptimisticLock{})
	full.SetManagedFields(managers)
	if err := a.Client.Patch(ctx, full, change, a.FieldOwner); err != nil {
		return fmt.Errorf("release containers and volumes of %s from other field managers: %w", live.GetName(), err)
	}
	return nil
}

// entries returns the paths of a workload's containers and volumes. They are invalid without fields that their builder sets.
func entries(o client.Object) []fieldpath.Path {
	template := Template(o)
	if template == nil {
		return nil
	}
	var paths []fieldpath.Path
	add := func(list, name string) {
		paths = append(paths, fieldpath.MakePathOrDie("spec", "template", "spec", list, fieldpath.KeyByFields("name", name)))
	}
	for i := range template.Spec.Containers {
		add("containers", template.Spec.Containers[i].Name)
	}
	for i := range template.Spec.InitContainers {
		add("initContainers", template.Spec.InitContainers[i].Name)
	}
	for i := range template.Spec.Volumes {
		add("volumes", template.Spec.Volumes[i].Name)
	}
	return paths
}

// release returns managed fields in which only the manager own has the unwanted entries that it has applied; nil if nothing changes.
func release(managers []metav1.ManagedFieldsEntry, unwanted []fieldpath.Path, own string) ([]metav1.ManagedFieldsEntry, error) {
	isOwn := func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == own && m.Operation == metav1.ManagedFieldsOperationApply && m.Subresource == ""
	}
	var applied fieldpath.Set
	if i := slices.IndexFunc(managers, isOwn); i >= 0 {
		if err := decodeFields(managers[i], &applied); err != nil {
			return nil, err
		}
	}
	unwanted = slices.DeleteFunc(unwanted, func(e fieldpath.Path) bool { return !applied.Has(e) })
	var kept []metav1.ManagedFieldsEntry
	changed := false
	for _, m := range managers {
		var before fieldpath.Set
		if err := decodeFields(m, &before); err != nil {
			return nil, err
		}
		after := before.RecursiveDifference(fieldpath.NewSet(unwanted...))
		if isOwn(m) || after.Size() == before.Size() {
			kept = append(kept, m)
			continue
		}
		changed = true
		if after.Empty() {
			continue
		}
		raw, err := after.ToJSON()
		if err != nil {
			return nil, fmt.Errorf("encode the fields of manager %s: %w", m.Manager, err)
		}
		m.FieldsV1 = metav1.NewFieldsV1(string(raw))
		kept = append(kept, m)
	}
	if !changed {
		return nil, nil
	}
	return kept, nil
}

func decodeFields(m metav1.ManagedFieldsEntry, into *fieldpath.Set) error {
	if m.FieldsV1 == nil {
		return nil
	}
	if err := into.FromJSON(m.FieldsV1.GetRawReader()); err != nil {
		return fmt.Errorf("decode the fields of manager %s: %w", m.Manager, err)
	}
	return nil
}
