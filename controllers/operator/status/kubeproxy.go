// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// kubeProxyConflicts returns the conflicts with kube-proxy that nodes report while the agents serve Services.
func kubeProxyConflicts(cluster *v1alpha1.OVNCluster, nodes []corev1.Node) []string {
	if cluster.Spec.Services.NodeAccess != v1alpha1.NodeAccessKiln {
		return nil
	}
	var all []string
	for i := range nodes {
		if message := KubeProxyConflict(&nodes[i]); message != "" {
			all = append(all, "node "+nodes[i].Name+": "+message)
		}
	}
	return all
}

// KubeProxyConflict returns the conflict on a node, or an empty string if it has no rules of kube-proxy.
func KubeProxyConflict(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == v1alpha1.NodeConditionKubeProxy && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}
