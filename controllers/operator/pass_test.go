// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

func TestResultsOfBothDatabasesAreReported(t *testing.T) {
	lost, waits := &halt{reason: "QuorumLost", message: "northbound lost", degraded: true}, &halt{reason: "Starting", message: "southbound starts"}
	refused := errors.New("refused")
	for _, c := range []struct {
		name          string
		err           error
		reason, halts string
		rest          error
	}{
		{"nothing", nil, "", "", nil},
		{"an error", refused, "", "", refused},
		{"a halt", lost, "QuorumLost", "northbound lost", nil},
		{"a wrapped halt", fmt.Errorf("phase: %w", lost), "QuorumLost", "northbound lost", nil},
		{"two halts", errors.Join(waits, lost), "Starting", "southbound starts; northbound lost", nil},
		{"a halt and an error", errors.Join(lost, refused), "QuorumLost", "northbound lost", refused},
		{"a halt, and nothing", errors.Join(lost, nil), "QuorumLost", "northbound lost", nil},
	} {
		h, rest := divide(c.err)
		if h == nil {
			h = &halt{}
		}
		if h.reason != c.reason || h.message != c.halts || !errors.Is(rest, c.rest) || rest != nil && c.rest == nil {
			t.Errorf("%s: %+v and %v", c.name, h, rest)
		}
		if h.degraded != errors.Is(c.err, lost) {
			t.Errorf("%s: degraded is %t", c.name, h.degraded)
		}
	}
}

// BenchmarkPodsOfManyNodes measures the work of a pass for the pods of a DaemonSet: one pod per node, each looked up with
// its node.
func BenchmarkPodsOfManyNodes(b *testing.B) {
	const nodes = 2000
	r, p := &Reconciler{}, &pass{cluster: &v1alpha1.OVNCluster{}}
	for i := range nodes {
		name := fmt.Sprintf("worker-%05d", i)
		p.nodes = append(p.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		p.pods = append(p.pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.ComponentLabel: render.AgentName}},
			Spec:       corev1.PodSpec{NodeName: name, Containers: make([]corev1.Container, 1)},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	p.cluster.Status.Upgrade.Images = []string{""}
	for b.Loop() {
		for _, pod := range p.podsOf(render.AgentName) {
			r.see(p, render.AgentName, "", pod)
		}
	}
}
