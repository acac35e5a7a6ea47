// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/podset"
)

// selecting returns the set of the EgressAddress that applies to a pod; without an Eip if there is none with an OvnEip.
func (r *podRules) selecting(pod *corev1.Pod) podset.Selector {
	selector, _ := r.Sets.Membership(podset.KeyOf(pod, kubeovnv1.ProviderOVN)).EgressOf()
	return selector
}

// selectionChanged enqueues the owners of ports whose pods another EgressAddress selects now, or none.
func (r *podRules) selectionChanged(c podset.Changes) {
	for _, port := range c.Egress {
		owner := port.NamespacedName
		if pod, err := k8s.Find[corev1.Pod](context.Background(), r.Client, owner, client.UnsafeDisableDeepCopy); err == nil && pod != nil { // from the cache
			owner = ownerOf(pod)
		}
		r.requests.AddKey(owner)
	}
}

// requestOf describes a request of a pod.
func (r *podRules) requestOf(pod *corev1.Pod, annotation kubeovnv1.Annotation) string {
	if selected := r.selected(pod, annotation); selected.Eip != "" {
		return "EgressAddress " + podset.NameOf(selected.Owner)
	}
	return "annotation " + annotation.Key()
}

// selected returns the set of the EgressAddress with an OvnEip that gives a pod its source address: one that the pod requests itself precedes.
func (r *podRules) selected(pod *corev1.Pod, annotation kubeovnv1.Annotation) podset.Selector {
	if pod == nil || annotation != kubeovnv1.AnnotationSnat {
		return podset.Selector{}
	}
	for _, request := range podRequests {
		if len(requested(pod, request.annotation)) > 0 {
			return podset.Selector{}
		}
	}
	return r.selecting(pod)
}

// given returns the OvnEip of the EgressAddress that selects the pod at a port. The status of the EgressAddress reports an OvnEip that does not exist.
func (r *podRules) given(ctx context.Context, owner types.NamespacedName, selected podset.Selector) (*kubeovnv1.OvnEip, string, error) {
	if why := r.beyond(owner); why != "" {
		return nil, why, nil
	}
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Client, client.ObjectKey{Name: selected.Eip}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, "", fmt.Errorf("get OvnEip %s: %w", selected.Eip, err)
	}
	return eip, "", nil
}

// podAt returns the pod that has the port of an owner; nil if there is none.
func (r *podRules) podAt(ctx context.Context, owner types.NamespacedName) (*corev1.Pod, error) {
	var list corev1.PodList
	if err := r.Client.List(ctx, &list, client.InNamespace(owner.Namespace), client.MatchingFields{indexOwner: owner.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods by the owner of the port: %w", err)
	}
	pod, err := k8s.Find[corev1.Pod](ctx, r.Client, owner, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get pod %s: %w", owner, err)
	}
	if pod != nil && ownerOf(pod) == owner {
		list.Items = append(list.Items, *pod)
	}
	var first *corev1.Pod
	for i := range list.Items {
		pod := &list.Items[i]
		if allocations.OnPodNetwork(pod) && kubeovnv1.IsPublished(pod) && (first == nil || allocations.CompareRunners(pod, first) < 0) {
			first = pod
		}
	}
	return first, nil
}
