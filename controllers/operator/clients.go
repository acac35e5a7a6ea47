// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
)

// clientAddresses are those of all nodes where northd and kube-ovn-controller may run, whether they do or not: when one of them moves, nobody has to be
// asked first. Databases' nodes are among them for whoever looks into a database there.
func clientAddresses(nodes []corev1.Node, spec v1alpha1.OVNClusterSpec, status v1alpha1.OVNClusterStatus) []string {
	var all []string
	for _, db := range []v1alpha1.DatabaseStatus{status.Northbound, status.Southbound} {
		for _, m := range db.Members {
			all = append(all, m.Address)
		}
	}
	for _, placement := range []v1alpha1.Placement{spec.Central.Placement, spec.Controller.Placement} {
		selector := labels.SelectorFromSet(render.NodeSelector(placement))
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
