// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

func TestConditionsFollowFromThePass(t *testing.T) {
	whole := component{row: v1alpha1.ComponentStatus{Name: "a"}, serves: true, serving: true, complete: true}
	partly := component{row: v1alpha1.ComponentStatus{Name: "b", Message: "1 of 2 ready"}, serves: true}
	down := component{row: v1alpha1.ComponentStatus{Name: "c", Message: "0 of 1 ready"}}
	pending := component{row: v1alpha1.ComponentStatus{Name: "d", Message: "backup x waits for claim y"}, serves: true, serving: true}
	troubled := partly
	troubled.troubles = []string{"one", "two", "three", "four", "five"}
	waiting := &halt{reason: "WaitingForDatabase", message: "no leader"}
	wrong := &halt{reason: "InvalidNetwork", message: "change it", degraded: true}
	for _, c := range []struct {
		name    string
		summary summary
		// Available, Progressing and Degraded.
		want [3]string
	}{
		{"all is well", summary{components: []component{whole}}, [3]string{
			"True ComponentsServe", "False AsSpecified", "False NoTrouble",
		}},
		{"not all nodes are there yet", summary{components: []component{whole, partly}}, [3]string{
			"False WaitingForComponents", "True WaitingForComponents", "False NoTrouble",
		}},
		{"a requested backup is pending", summary{components: []component{whole, pending}}, [3]string{
			"True ComponentsServe", "True WaitingForComponents", "False NoTrouble",
		}},
		{"a node joins an available network", summary{components: []component{whole, partly}, wasAvailable: true}, [3]string{
			"True ComponentsServe", "True WaitingForComponents", "False NoTrouble",
		}},
		{"a component is lost", summary{components: []component{whole, down}, wasAvailable: true}, [3]string{
			"False WaitingForComponents", "True WaitingForComponents", "False NoTrouble",
		}},
		{"a pod fails", summary{components: []component{troubled}, wasAvailable: true}, [3]string{
			"True ComponentsServe", "True WaitingForComponents", "True ComponentTrouble",
		}},
		{"the pass waits", summary{components: []component{down}, halt: waiting}, [3]string{
			"False WaitingForComponents", "True WaitingForDatabase", "False NoTrouble",
		}},
		{"the specification is wrong while all runs", summary{components: []component{whole}, halt: wrong, wasAvailable: true}, [3]string{
			"True ComponentsServe", "False InvalidNetwork", "True InvalidNetwork",
		}},
		{"one database has lost its quorum, the other one cannot be reached", summary{
			components: []component{down}, halt: wrong, err: errors.New("refused"), wasAvailable: true,
		}, [3]string{"False WaitingForComponents", "True ReconcileFailed", "True InvalidNetwork"}},
		{"the API server failed", summary{components: []component{whole}, err: errors.New("refused"), wasAvailable: true}, [3]string{
			"True ComponentsServe", "True ReconcileFailed", "True ReconcileFailed",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got [3]string
			for i, condition := range c.summary.conditions() {
				got[i] = string(condition.Status) + " " + condition.Reason
				if condition.Message == "" {
					t.Errorf("%s has no message", condition.Type)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	degraded := summary{components: []component{troubled}}.degraded()
	if want := "b: one; b: two; b: three; b: and 2 more"; degraded.Message != want {
		t.Errorf("the message is %q; want %q", degraded.Message, want)
	}
}

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
			if got := trouble(pod, now); got != c.want {
				t.Errorf("trouble is %q; want %q", got, c.want)
			}
		})
	}
	if got := lastWords(strings.Repeat("ü", maxReason)); len(got) > maxReason+len("…") || !strings.HasSuffix(got, "…") {
		t.Errorf("a long line is cut to %d bytes", len(got))
	}
}

// TestPodsOfSilentNodesAreNobodysTrouble has unscheduled pods of DaemonSets, because their nodes are full or were
// deleted.
func TestPodsOfSilentNodesAreNobodysTrouble(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus) corev1.Node {
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
		}
	}
	p := &pass{nodes: []corev1.Node{node("heard", corev1.ConditionTrue), node("silent", corev1.ConditionUnknown)}}
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
	if got := p.trouble(render.AgentName, unbound("silent")); got != "" {
		t.Errorf("the pod of a node that does not answer: %q", got)
	}
	if got := p.trouble(render.AgentName, unbound("heard")); !strings.Contains(got, "too many pods") {
		t.Errorf("the pod of a node that answers: %q", got)
	}
	bound := unbound("heard")
	bound.Spec.NodeName = "silent"
	if got := madeFor(bound); got != "silent" {
		t.Errorf("a pod that is bound is on its node, not %q", got)
	}
}

func TestMembersAreUpdatedByWhatConcernsThem(t *testing.T) {
	stamped := func(stamp string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{render.TemplateAnnotation: stamp}}}
	}
	set := &appsv1.StatefulSet{Status: appsv1.StatefulSetStatus{UpdatedReplicas: 0}} // a change of members created a new revision
	set.Spec.Template.Annotations = map[string]string{render.TemplateAnnotation: "new"}
	if got := updatedPods(set, []*corev1.Pod{stamped("new"), stamped("old"), {}, stamped("new")}); got != 2 {
		t.Errorf("%d of four pods are updated, not 2", got)
	}
}
