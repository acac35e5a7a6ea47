// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

func TestTheStatusOfSessionsIsBounded(t *testing.T) {
	var pods []*corev1.Pod
	add := func(node, message string) {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.PodConditionPeers, Message: message}}
		pods = append(pods, pod)
	}
	for i := range 40 {
		add(fmt.Sprintf("node-%02d", i), "192.0.2.1 Established")
	}
	hostile := "nonsense; 192.0.2.1 Up; fe80::1%eth0 Down; 192.0.2.9 Down; 192.0.2.9 Established"
	for i := range 100 {
		hostile += fmt.Sprintf("; 198.51.100.%d Established", i)
	}
	add("node-99", hostile)
	add("node-99", "192.0.2.7 Down")
	got := speakerStatus(pods)
	if len(got.Nodes) != v1alpha1.MaxSpeakerStatusNodes || got.Nodes[0].Node != "node-99" || len(got.Nodes[0].Peers) != v1alpha1.MaxPeers {
		t.Errorf("%d nodes, the first is %+v", len(got.Nodes), got.Nodes[0])
	}
	if got.Sessions != 40+v1alpha1.MaxPeers || got.Established != got.Sessions-1 {
		t.Errorf("%d of %d sessions are established", got.Established, got.Sessions)
	}
	if down := downSessions(got); len(down) != 1 || down[0] != "node node-99 with 192.0.2.9" {
		t.Errorf("down: %v", down)
	}
}
