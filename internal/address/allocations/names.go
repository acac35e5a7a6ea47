// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package allocations has rules about the holders of allocations: nodes, pods of StatefulSets, and reservations of users.
package allocations

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
)

// OfNode reports whether an allocation belongs to a node: the join subnet has no pods.
func OfNode(allocation ipam.Allocation) bool { return allocation.Subnet == kubeovnv1.JoinSubnet }

// StatefulSetOf returns the StatefulSet that a pod of this name would belong to, and the pod's ordinal. The ordinal is negative if no
// StatefulSet creates such names.
func StatefulSetOf(pod types.NamespacedName) (types.NamespacedName, int) {
	i := strings.LastIndexByte(pod.Name, '-')
	if i < 1 {
		return types.NamespacedName{}, -1
	}
	ordinal, err := strconv.Atoi(pod.Name[i+1:])
	if err != nil || ordinal < 0 || strconv.Itoa(ordinal) != pod.Name[i+1:] {
		return types.NamespacedName{}, -1
	}
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name[:i]}, ordinal
}

// OnPodNetwork reports whether a pod uses the pod network: it is scheduled, not finished, and not on the host network.
func OnPodNetwork(pod *corev1.Pod) bool {
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return !pod.Spec.HostNetwork && pod.Spec.NodeName != "" && !finished
}

// OfStatefulSet reports whether a StatefulSet made a pod.
func OfStatefulSet(pod metav1.Object) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == kubeovnv1.PodTypeStatefulSet && strings.HasPrefix(owner.APIVersion, "apps/")
}

// PortIsNodes reports whether the name of a port belongs to an existing node.
func PortIsNodes(ctx context.Context, reader client.Reader, port string) (bool, error) {
	name, ok := strings.CutPrefix(port, kubeovnv1.NodePortName(""))
	if !ok {
		return false, nil
	}
	err := reader.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{}, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get node %s: %w", name, err)
	}
	return err == nil, nil
}
