// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"cmp"
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

// selected returns the set of the EgressAddress with an OvnEip that gives the pod at a port its source address: an OvnEip that the pod requests itself precedes, if its rule is
// served or can be.
func (r *podRules) selected(ctx context.Context, owner types.NamespacedName, pod *corev1.Pod, annotation kubeovnv1.Annotation) (podset.Selector, error) {
	if pod == nil || annotation != kubeovnv1.AnnotationSnat {
		return podset.Selector{}, nil
	}
	selector := r.selecting(pod)
	if selector.Eip == "" {
		return selector, nil
	}
	for _, request := range podRequests {
		if eip, _, err := r.servable(ctx, owner, pod, request.kind, request.annotation); eip != nil || err != nil {
			return podset.Selector{}, err
		}
	}
	return selector, nil
}

// bring makes the rule of a request, or of an EgressAddress without one. It returns why it is not applied, or why a request is refused; "" if it is applied, or soon will be.
func (r *podRules) bring(ctx context.Context, owner types.NamespacedName, pod *corev1.Pod, kind string, annotation kubeovnv1.Annotation) (string, error) {
	selected, err := r.selected(ctx, owner, pod, annotation)
	if err != nil {
		return "", err
	}
	eip, refused, err := r.servable(ctx, owner, pod, kind, annotation)
	if err != nil {
		return "", err
	}
	by, why := "annotation "+annotation.Key()+": ", ""
	if selected.Eip != "" {
		by = "EgressAddress " + podset.NameOf(selected.Owner) + ": "
		if eip, err = r.given(ctx, selected); err != nil {
			return "", err
		}
	}
	if eip != nil {
		if why = r.beyond(owner); why != "" {
			eip = nil
		}
	}
	later, err := r.follow(ctx, owner, kind, eip, selected)
	switch why = cmp.Or(why, later); {
	case refused != "": // the status of the EgressAddress reports its rules that are not applied
		return "annotation " + annotation.Key() + ": " + refused, err
	case why != "":
		return by + why, err
	}
	return "", err
}

// given returns the OvnEip of an EgressAddress. The status of the EgressAddress reports an OvnEip that does not exist.
func (r *podRules) given(ctx context.Context, selected podset.Selector) (*kubeovnv1.OvnEip, error) {
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Client, client.ObjectKey{Name: selected.Eip}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("get OvnEip %s: %w", selected.Eip, err)
	}
	return eip, nil
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
