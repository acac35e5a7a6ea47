// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTroubleOfAPod(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	unready := func(since time.Duration) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-since))}}
	}
	waiting := func(reason, message string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
		}}}
	}
	ended := func(code int32, message string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			LastTerminationState: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: message},
			},
		}}
	}
	for _, c := range []struct {
		name   string
		status corev1.PodStatus
		want   string
	}{
		{"starting", corev1.PodStatus{Conditions: unready(time.Minute), ContainerStatuses: waiting("ContainerCreating", "")}, ""},
		{"unready for a while", corev1.PodStatus{Conditions: unready(time.Minute)}, ""},
		{
			"unready for long", corev1.PodStatus{Conditions: unready(time.Hour)},
			"node n: not ready for a long time: see kubectl -n kube-system describe pod p, and its logs",
		},
		{
			"ready again after it failed", corev1.PodStatus{
				Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
				ContainerStatuses: ended(1, "old"),
			}, "",
		},
		{
			"ready, and the database refuses rows", corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue},
				{Type: "kubeovn.io/NorthboundWritten", Status: corev1.ConditionFalse, Message: "the northbound database refuses the rows of Pod/a/b"},
			}}, "the northbound database refuses the rows of Pod/a/b",
		},
		{
			"ready, and another one leads", corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue},
				{Type: "kubeovn.io/NorthboundWritten", Status: corev1.ConditionUnknown, Message: "another kube-ovn-controller leads"},
			}}, "",
		},
		{
			"no image", corev1.PodStatus{Conditions: unready(0), ContainerStatuses: waiting("ErrImagePull", "no such image\nmore")},
			"node n: ErrImagePull: no such image",
		},
		{"failed with a reason", corev1.PodStatus{Conditions: unready(0), ContainerStatuses: ended(1, "a\nthe reason\n")}, "node n: the reason"},
		{
			"failed without a word", corev1.PodStatus{Conditions: unready(0), ContainerStatuses: ended(137, "")},
			"node n: the container ended with exit code 137 (Error)",
		},
		{
			"killed while all was well",
			corev1.PodStatus{Conditions: unready(0), ContainerStatuses: ended(137, `{"level":"info","msg":"serving","node":"n"}`)},
			"node n: the container ended with exit code 137 (Error)",
		},
		{
			"failed with an error in its log",
			corev1.PodStatus{Conditions: unready(0), ContainerStatuses: ended(1, "{}\n"+`{"level":"error","msg":"cannot start","error":"no bridge","stacktrace":"x"}`)},
			"node n: cannot start: no bridge",
		},
		{"ended on request", corev1.PodStatus{Conditions: unready(0), ContainerStatuses: ended(0, "bye")}, ""},
		{
			"no room", corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"},
			}},
			"pod p has no node: 0/3 nodes are available",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "kube-system", CreationTimestamp: metav1.NewTime(now)},
				Spec:       corev1.PodSpec{NodeName: "n"}, Status: c.status,
			}
			if got := Trouble(pod, "", now); got != c.want {
				t.Errorf("trouble is %q; want %q", got, c.want)
			}
		})
	}
	waits := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Conditions: unready(time.Hour)}}
	if got := Trouble(waits, "its disk is full", now); got != "node n: not ready for a long time: its disk is full" {
		t.Errorf("trouble of a pod that reports a reason is %q", got)
	}
	if got := lastWords(strings.Repeat("ü", maxReason)); len(got) > maxReason+len("…") || !strings.HasSuffix(got, "…") {
		t.Errorf("a long line is cut to %d bytes", len(got))
	}
}
