// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// TestPodsOfSilentNodesAreNotReported has unscheduled pods of DaemonSets, because their nodes are full or were
// deleted.
func TestPodsOfSilentNodesAreNotReported(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus) corev1.Node {
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
		}
	}
	p := NewReport(&observed.Cluster{Nodes: []corev1.Node{node("heard", corev1.ConditionTrue), node("silent", corev1.ConditionUnknown)}})
	unbound := func(node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node},
			Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
				}}},
			}}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "too many pods",
			}}},
		}
	}
	if got := p.Trouble(render.AgentName, unbound("silent")); got != "" {
		t.Errorf("the pod of a node that does not answer: %q", got)
	}
	if got := p.Trouble(render.AgentName, unbound("heard")); !strings.Contains(got, "too many pods") {
		t.Errorf("the pod of a node that answers: %q", got)
	}
	bound := unbound("heard")
	bound.Spec.NodeName = "silent"
	if got := observed.MadeFor(bound); got != "silent" {
		t.Errorf("a pod that is bound is on its node, not %q", got)
	}
}

func TestResultsOfBothDatabasesAreReported(t *testing.T) {
	lost, waits := &Halt{Reason: "QuorumLost", Message: "northbound lost", Degraded: true}, &Halt{Reason: "Starting", Message: "southbound starts"}
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
		{"two halts", errors.Join(waits, lost), "QuorumLost", "southbound starts; northbound lost", nil},
		{"two halts of a phase", fmt.Errorf("phase: %w", errors.Join(waits, lost)), "QuorumLost", "southbound starts; northbound lost", nil},
		{"a halt and an error of a phase", fmt.Errorf("phase: %w", errors.Join(lost, refused)), "QuorumLost", "northbound lost", refused},
		{"a halt and an error", errors.Join(lost, refused), "QuorumLost", "northbound lost", refused},
		{"a halt, and nothing", errors.Join(lost, nil), "QuorumLost", "northbound lost", nil},
	} {
		h, rest := divide(c.err)
		if h == nil {
			h = &Halt{}
		}
		if h.Reason != c.reason || h.Message != c.halts || !errors.Is(rest, c.rest) || rest != nil && c.rest == nil {
			t.Errorf("%s: %+v and %v", c.name, h, rest)
		}
		if h.Degraded != errors.Is(c.err, lost) {
			t.Errorf("%s: degraded is %t", c.name, h.Degraded)
		}
	}
}
