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

// results are the keys of the annotations that PodNetwork writes. One that it leaves out must not stay from before.
var results = kubeovnv1.Keys(kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleResult, kubeovnv1.RoleClaim))

// requests are the keys of the annotations that only users write.
var requests = kubeovnv1.Keys(kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleRequest))

var (
	keyAllocated, keyUID = kubeovnv1.AnnotationAllocated.Key(), kubeovnv1.AnnotationPodUID.Key()
	keyPortSecurity      = kubeovnv1.AnnotationPortSecurity.Key()
	keyAddress, keyMAC   = kubeovnv1.AnnotationIPAddress.Key(), kubeovnv1.AnnotationMACAddress.Key()
)

// patchesInFlight bounds the patches of pods that are under way: enough for the API server to be busy, and the workers beyond them are
// free to bring more pods into the next transaction.
const patchesInFlight = 40

// publish writes the network on the pod, in one patch which only this very pod takes; nothing when it is there already. The network comes from
// a subnet's spec.
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
	r.ledger.write(pod, want, from)
	written, err := r.patch(ctx, client.ObjectKeyFromObject(pod), patch)
	switch {
	case err == nil:
	case apierrors.IsNotFound(err) || isOtherPod(err):
		return nil // the watch tells of it
	default:
		return fmt.Errorf("patch annotations: %w", err)
	}
	r.journeys.reached(pod.UID, legAnnotated)
	r.records.podCame()
	r.ledger.wrote(written, want, from)
	_, err = r.get(ctx, client.ObjectKeyFromObject(pod)) // the cache may have it by now
	return err
}

// spelled returns results with the spelling that a pod's annotations have where both mean the same. A user who applies the same manifest again
// changes nothing then, and the API server accepts it.
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

// patch sends a patch of a pod's annotations, one of patchesInFlight, and returns the metadata that the server answers. The subresource
// status accepts annotations and ignores changes of the spec, so the controller needs no right to change pods themselves.
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

// isOtherPod reports whether a patch was refused because the pod of that name has another UID by now.
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

// difference returns the changes of a merge patch: values, and nil for results to remove. The patch that allocates sets every result:
// before it, users can change some of them, and the pod may have changed since the cache saw it.
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
