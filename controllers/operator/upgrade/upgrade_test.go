// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
)

// BenchmarkPodsOfManyNodes measures the work of a pass for the pods of a DaemonSet: one pod per node, each looked up with
// its node.
func BenchmarkPodsOfManyNodes(b *testing.B) {
	const nodes = 2000
	r, seen := &Replacer{}, &observed.Cluster{}
	in := Input{OVNCluster: &v1alpha1.OVNCluster{}, Report: status.NewReport(seen)}
	for i := range nodes {
		name := fmt.Sprintf("worker-%05d", i)
		seen.Nodes = append(seen.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		seen.Pods = append(seen.Pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.ComponentLabel: render.AgentName}},
			Spec:       corev1.PodSpec{NodeName: name, Containers: make([]corev1.Container, 1)},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	in.OVNCluster.Status.Upgrade.Images = []string{""}
	for b.Loop() {
		for _, pod := range seen.PodsOf(render.AgentName) {
			r.See(in, render.AgentName, "", pod)
		}
	}
}
