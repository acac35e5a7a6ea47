// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// trimmedCache keeps of each object what the controllers read, because every pod and node of the cluster is in it. Objects are only
// ever patched by differences, so that what is not kept is not lost.
func trimmedCache() cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:  {Transform: trimPod},
			&corev1.Node{}: {Transform: trimNode},
		},
	}
}

func trimPod(o any) (any, error) {
	if pod, ok := o.(*corev1.Pod); ok {
		pod.ManagedFields = nil
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork}
		pod.Status = corev1.PodStatus{Phase: pod.Status.Phase}
	}
	return o, nil
}

func trimNode(o any) (any, error) {
	if node, ok := o.(*corev1.Node); ok {
		node.ManagedFields = nil
		node.Status = corev1.NodeStatus{Addresses: node.Status.Addresses, Conditions: trimConditions(node.Status.Conditions)}
	}
	return o, nil
}

// trimConditions keeps whether a node serves, and not since when.
func trimConditions(conditions []corev1.NodeCondition) []corev1.NodeCondition {
	var kept []corev1.NodeCondition
	for _, c := range conditions {
		if c.Type == corev1.NodeReady || c.Type == corev1.NodeNetworkUnavailable {
			kept = append(kept, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		}
	}
	return kept
}
