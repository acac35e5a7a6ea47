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

// results are the annotations that PodNetwork writes. One that it leaves out must not stay from before.
var results = []kubeovnv1.Annotation{
	kubeovnv1.AnnotationPodUID, kubeovnv1.AnnotationAllocated, kubeovnv1.AnnotationRouted,
	kubeovnv1.AnnotationIPAddress, kubeovnv1.AnnotationMACAddress, kubeovnv1.AnnotationCIDR, kubeovnv1.AnnotationGateway,
	kubeovnv1.AnnotationLogicalSwitch, kubeovnv1.AnnotationLogicalRouter, kubeovnv1.AnnotationMTU, kubeovnv1.AnnotationPodNICType,
}

// requests are the annotations that only users write and a port depends on.
var requests = []kubeovnv1.Annotation{kubeovnv1.AnnotationIPFamily, kubeovnv1.AnnotationPortSecurity}

// publish writes the network on the pod, in one patch which only this very pod takes; nothing when it is there already.
func (r *Reconciler) publish(ctx context.Context, pod *corev1.Pod, network kubeovnv1.PodNetwork) error {
	changes := difference(pod.Annotations, network.Annotations())
	if len(changes) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": changes}})
	if err != nil {
		return fmt.Errorf("encode annotations: %w", err)
	}
	written := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err = r.Client.Patch(ctx, written, client.RawPatch(types.MergePatchType, patch), k8s.FieldOwner)
	if apierrors.IsNotFound(err) || isOtherPod(err) {
		return nil // the watch tells of it
	}
	if err != nil {
		return fmt.Errorf("patch annotations: %w", err)
	}
	r.observe(pod, legPatched)
	r.ledger.wrote(written)
	return nil
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

// difference is what a merge patch changes: values, and nil for results that are wanted no more.
func difference(have, want map[string]string) map[string]*string {
	changes := map[string]*string{}
	for _, a := range results {
		key := a.Key()
		before, had := have[key]
		after, wanted := want[key]
		switch {
		case wanted && before != after:
			changes[key] = &after
		case !wanted && had:
			changes[key] = nil
		}
	}
	return changes
}

// sameNetworkAnnotations reports whether two states of a pod agree in every annotation that its port depends on.
func sameNetworkAnnotations(a, b *corev1.Pod) bool {
	for _, list := range [][]kubeovnv1.Annotation{results, requests} {
		for _, annotation := range list {
			if a.Annotations[annotation.Key()] != b.Annotations[annotation.Key()] {
				return false
			}
		}
	}
	return true
}

func uidOf(annotations map[string]string) types.UID {
	return types.UID(annotations[kubeovnv1.AnnotationPodUID.Key()])
}
