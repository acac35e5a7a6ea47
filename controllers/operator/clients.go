// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
)

// clientAddresses returns the addresses of all nodes that may run northd or kube-ovn-controller. It includes nodes
// without such a pod, so that a pod can move without a change of access rules. It also includes the databases' nodes, for
// tools that run there.
func clientAddresses(nodes []corev1.Node, spec v1alpha1.OVNClusterSpec, status v1alpha1.OVNClusterStatus) []string {
	var all []string
	for _, db := range []v1alpha1.DatabaseStatus{status.Northbound, status.Southbound} {
		for _, m := range db.Members {
			all = append(all, m.Address)
		}
	}
	for _, placement := range []v1alpha1.Placement{spec.Central.Placement, spec.Controller.Placement} {
		selector := placement.Selector()
		for i := range nodes {
			if !selector.Matches(labels.Set(nodes[i].Labels)) {
				continue
			}
			for _, a := range k8s.InternalIPs(&nodes[i]) {
				all = append(all, a.String())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
