// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// results are the keys of the annotations that PodNetwork writes. A key that PodNetwork leaves out is removed from the pod.
var results = kubeovnv1.Keys(kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleResult, kubeovnv1.RoleClaim))

// requests are the keys of the annotations that only users write.
var requests = kubeovnv1.Keys(kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleRequest))

var (
	keyAllocated, keyUID = kubeovnv1.AnnotationAllocated.Key(), kubeovnv1.AnnotationPodUID.Key()
	keyPortSecurity      = kubeovnv1.AnnotationPortSecurity.Key()
	keyAddress, keyMAC   = kubeovnv1.AnnotationIPAddress.Key(), kubeovnv1.AnnotationMACAddress.Key()
)

// patchesInFlight bounds the concurrent patches of pods. It keeps the API server busy, and leaves the other workers free to add pods to
// the next transaction.
const patchesInFlight = 40

// publish writes the network, which comes from the given subnet spec, on the pod. It sends one patch with the pod's UID as precondition,
// or nothing if the annotations are up to date.
func (r *Reconciler) publish(ctx context.Context, pod *corev1.Pod, network kubeovnv1.PodNetwork, from specOf) error {
	want := spelled(network.Annotations(), pod.Annotations)
	changes := difference(pod.Annotations, want)
	if len(changes) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": changes}})
	if err != nil {
		return fmt.Errorf("encode annotations: %w", err)
	}
	r.podWrites.write(pod, want, from)
	written, err := r.patch(ctx, client.ObjectKeyFromObject(pod), patch)
	switch {
	case err == nil:
	case apierrors.IsNotFound(err) || isOtherPod(err):
		return nil // the watch delivers the change
	default:
		return fmt.Errorf("patch annotations: %w", err)
	}
	r.latencies.reached(pod.UID, stageAnnotated)
	r.ipObjects.PodCame()
	r.podWrites.wrote(written, want, from)
	_, err = r.get(ctx, client.ObjectKeyFromObject(pod)) // drops the entry of podWrites if the cache has the patch already
	return err
}

// spelled returns results with the pod's own spelling of addresses and MAC where the values are equal. So a user can apply the same
// manifest again: it changes nothing, and the API server accepts it.
func spelled(results, have map[string]string) map[string]string {
	if have[keyAddress] == results[keyAddress] && have[keyMAC] == results[keyMAC] {
		return results
	}
	requested, err := kubeovnv1.ParsePodNetwork(map[string]string{keyAddress: have[keyAddress], keyMAC: have[keyMAC]})
	if err != nil {
		return results
	}
	meaning := requested.Annotations()
	for _, key := range []string{keyAddress, keyMAC} {
		if meaning[key] != "" && meaning[key] == results[key] {
			results[key] = have[key]
		}
	}
	return results
}

// patch sends a patch of a pod's annotations, at most patchesInFlight at a time, and returns the metadata in the response. The status
// subresource accepts annotations and ignores spec changes, so the controller needs no permission to patch pods themselves.
func (r *Reconciler) patch(ctx context.Context, pod types.NamespacedName, patch []byte) (*metav1.PartialObjectMetadata, error) {
	select {
	case r.patching <- struct{}{}:
		defer func() { <-r.patching }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	options := metav1.PatchOptions{FieldManager: string(k8s.FieldOwner)}
	return r.pods.Namespace(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, options, "status")
}

// isOtherPod reports whether the API server rejected a patch because the pod of that name has another UID.
func isOtherPod(err error) bool {
	ofUID := func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" }
	return apierrors.IsConflict(err) || slices.ContainsFunc(causesOf(err), ofUID)
}

func causesOf(err error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}

// difference returns the changes for a merge patch: values, and nil for results to remove. The patch that first publishes the network
// sets every result: until then users can change some of them, and the pod may have changed since the cached state.
func difference(have, want map[string]string) map[string]*string {
	changes := map[string]*string{}
	allocates := want[keyAllocated] == "true" && (have[keyAllocated] != "true" || have[keyUID] != want[keyUID])
	for _, key := range results {
		before, had := have[key]
		after, wanted := want[key]
		switch {
		case wanted && (allocates || before != after):
			changes[key] = &after
		case !wanted && (allocates || had):
			changes[key] = nil
		}
	}
	return changes
}

// agree reports whether two states of a pod have the same values of these annotations.
func agree(a, b *corev1.Pod, keys []string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return a.Annotations[key] != b.Annotations[key] })
}
