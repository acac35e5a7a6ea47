// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/endpoints"
	"github.com/kiln-net/kiln/internal/k8s"
)

// VpcOfEndpoints returns the VPC of the first endpoint whose pod has one; empty if no endpoint is a pod of a VPC. live reads
// from the API server, for pods that the cache does not show yet.
func VpcOfEndpoints(ctx context.Context, cache, live client.Reader, of []*discoveryv1.EndpointSlice) (string, error) {
	reads := &limited{Reader: live, left: maxLiveReads}
	for _, slice := range of {
		for i := range slice.Endpoints {
			vpc, err := vpcOfEndpoint(ctx, cache, reads, slice.Namespace, &slice.Endpoints[i])
			if vpc != "" || err != nil {
				return vpc, err
			}
		}
	}
	return "", nil
}

// VpcOfSelected returns the VPC of the first pod with these labels that has one; empty if there is none.
func VpcOfSelected(ctx context.Context, cache client.Reader, namespace string, labels map[string]string) (string, error) {
	var pods corev1.PodList
	if err := cache.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(labels), client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list the pods of a selector: %w", err)
	}
	for i := range pods.Items {
		if vpc := pods.Items[i].Annotations[kubeovnv1.AnnotationLogicalRouter.Key()]; vpc != "" {
			return vpc, nil
		}
	}
	return "", nil
}

// maxLiveReads bounds the pods of one Service that are read from the API server: EndpointSlices may name thousands of pods that
// do not exist.
const maxLiveReads = 16

// limited is a reader with the number of remaining reads.
type limited struct {
	client.Reader
	left int
}

// vpcOfEndpoint returns the VPC of an endpoint's pod; empty for any other endpoint. A ready pod has a network, so a cache miss
// is retried with a live read.
func vpcOfEndpoint(ctx context.Context, cache client.Reader, live *limited, namespace string, e *discoveryv1.Endpoint) (string, error) {
	if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
		return "", nil
	}
	key := client.ObjectKey{Namespace: namespace, Name: e.TargetRef.Name}
	vpc, known, err := vpcOfPod(ctx, cache, key)
	if err == nil && !known && live.left > 0 && endpoints.StateOf(e) == endpoints.Ready {
		live.left--
		vpc, _, err = vpcOfPod(ctx, live, key)
	}
	return vpc, err
}

// vpcOfPod reads the VPC of a pod. For a pod on the host network, vpc is empty and known is true.
func vpcOfPod(ctx context.Context, reader client.Reader, key client.ObjectKey) (vpc string, known bool, err error) {
	pod, err := k8s.Find[corev1.Pod](ctx, reader, key, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", false, fmt.Errorf("get pod %s of an endpoint: %w", key, err)
	}
	if pod == nil {
		return "", false, nil
	}
	vpc = pod.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()]
	return vpc, vpc != "" || pod.Spec.HostNetwork, nil
}
