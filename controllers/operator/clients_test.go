// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestClientsAreTheNodesOfThePlacementsAndOfMembers(t *testing.T) {
	node := func(name, label string, addresses ...string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: ""}}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		return n
	}
	nodes := []corev1.Node{
		node("control", v1alpha1.ControlPlaneLabel, "192.0.2.1", "2001:db8::1"), node("infra", "infra", "192.0.2.5"), node("worker", "worker", "192.0.2.9"),
	}
	var spec v1alpha1.OVNClusterSpec
	spec.Controller.NodeSelector = map[string]string{"infra": ""}
	status := v1alpha1.OVNClusterStatus{Northbound: v1alpha1.DatabaseStatus{Members: []v1alpha1.DatabaseMember{
		{Node: "control", Address: "192.0.2.1"}, {Node: "gone", Address: "192.0.2.7"},
	}}}
	got := clientAddresses(nodes, spec, status)
	if want := []string{"192.0.2.1", "192.0.2.5", "192.0.2.7", "2001:db8::1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
