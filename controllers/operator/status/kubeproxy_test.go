// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestKubeProxyConflictIsReported(t *testing.T) {
	node := func(name string, status corev1.ConditionStatus) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: v1alpha1.NodeConditionKubeProxy, Status: status, Message: "remove it"},
		}}}
	}
	left, gone := node("left", corev1.ConditionTrue), node("gone", corev1.ConditionFalse)
	for access, want := range map[v1alpha1.NodeAccess]string{
		v1alpha1.NodeAccessKiln: "node left: remove it", v1alpha1.NodeAccessKubeProxy: "", "": "",
	} {
		cluster := &v1alpha1.OVNCluster{}
		cluster.Spec.Services.NodeAccess = access
		if got := strings.Join(kubeProxyConflicts(cluster, []corev1.Node{left, gone, {}}), "; "); got != want {
			t.Errorf("with nodeAccess %q: %q, want %q", access, got, want)
		}
	}
}
