// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// requests are the keys of the annotations that only users write, for the first network.
var requests = slices.Concat(kubeovnv1.Keys(kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleRequest)), kubeovnv1.BandwidthKeys)

// patchesInFlight bounds the concurrent patches of pods. It keeps the API server busy, and leaves the other workers free to add pods to
// the next transaction.
const patchesInFlight = 40

// publish writes the network of a connection on its pods.
func (r *Reconciler) publish(ctx context.Context, c *connection) error {
	from := specOf{c.subnet.UID, k8s.ViewSubnet(c.subnet)}
	for _, pod := range append([]*corev1.Pod{c.pod}, c.others...) {
		if err := r.write(ctx, pod, c.network(pod), from); err != nil {
			return err
		}
	}
	if requestsExternal(c.pod) {
		r.ipObjects.Check(c.port.Name) // its rules wait for the IP object
	} else {
		r.ipObjects.Update(ctx, c.port.Name) // also if an earlier pass has written the results
	}
	return nil
}

// requestsExternal reports whether a pod requests addresses of an OvnEip.
func requestsExternal(pod *corev1.Pod) bool {
	return slices.ContainsFunc([]kubeovnv1.Annotation{kubeovnv1.AnnotationEip, kubeovnv1.AnnotationSnat}, func(a kubeovnv1.Annotation) bool {
		return len(kubeovnv1.ParseExternal(pod.Annotations, a)) > 0
	})
}

// write writes a network, which comes from the given subnet spec, on the pod. It sends one patch with the pod's UID as precondition,
// or nothing if the annotations are up to date.
func (r *Reconciler) write(ctx context.Context, pod *corev1.Pod, network kubeovnv1.PodNetwork, from specOf) error {
	want := spelled(network, pod.Annotations)
	changes := difference(pod.Annotations, want, network.Provider)
	if len(changes) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": changes}})
	if err != nil {
		return fmt.Errorf("encode annotations: %w", err)
	}
	key, write := client.ObjectKeyFromObject(pod), entry{uid: pod.UID, results: want, provider: network.Provider, from: from}
	r.podWrites.set(key, write)
	select {
	case r.patching <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	// The status subresource accepts annotations and ignores spec changes, so the controller needs no permission to patch pods themselves.
	options := metav1.PatchOptions{FieldManager: string(k8s.FieldOwner)}
	written, err := r.pods.Namespace(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, patch, options, "status")
	<-r.patching
	switch {
	case err == nil:
	case apierrors.IsNotFound(err) || isOtherPod(err):
		return nil // the watch delivers the change
	default:
		return fmt.Errorf("patch annotations: %w", err)
	}
	r.latencies.reached(pod.UID, stageAnnotated)
	r.ipObjects.PodCame()
	write.resourceVersion, write.annotations = written.ResourceVersion, maps.Clone(written.Annotations)
	r.podWrites.set(key, write)
	_, err = r.get(ctx, key) // drops the entry of podWrites if the cache has the patch already
	return err
}

// spelled returns the annotations of a network, with the pod's own spelling of addresses and MAC where the values are equal. So a user can apply the same
// manifest again: it changes nothing, and the API server accepts it.
func spelled(network kubeovnv1.PodNetwork, have map[string]string) map[string]string {
	results := network.Annotations()
	address, mac := kubeovnv1.AnnotationIPAddress.For(network.Provider), kubeovnv1.AnnotationMACAddress.For(network.Provider)
	if have[address] == results[address] && have[mac] == results[mac] {
		return results
	}
	requested, err := kubeovnv1.ParsePodRequestOf(map[string]string{address: have[address], mac: have[mac]}, network.Provider)
	if err != nil {
		return results
	}
	if len(requested.Addresses) > 0 && slices.Equal(requested.Addresses, network.Addresses) {
		results[address] = have[address]
	}
	if len(requested.MAC) > 0 && bytes.Equal(requested.MAC, network.MAC) {
		results[mac] = have[mac]
	}
	return results
}

// isOtherPod reports whether the API server rejected a patch because the pod of that name has another UID.
func isOtherPod(err error) bool {
	var status apierrors.APIStatus
	if apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return apierrors.IsConflict(err)
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// difference returns the changes of the results of a provider's network for a merge patch: values, and nil for results to remove. The patch that first publishes the network
// sets every result: until then users can change some of them, and the pod may have changed since the cached state.
func difference(have, want map[string]string, provider string) map[string]*string {
	changes := map[string]*string{}
	allocated, uid := kubeovnv1.AnnotationAllocated.For(provider), kubeovnv1.AnnotationPodUID.For(provider)
	allocates := want[allocated] == "true" && (have[allocated] != "true" || have[uid] != want[uid])
	for _, key := range kubeovnv1.ResultKeys(provider) {
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

// agree reports whether two states of annotations have the same values of these keys.
func agree(a, b map[string]string, keys []string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return a[key] != b[key] })
}
