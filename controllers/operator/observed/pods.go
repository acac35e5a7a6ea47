// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

const (
	// patience is the time after which an unready pod without a known reason needs attention.
	patience = 5 * time.Minute
	// maxReason limits the last message of a container.
	maxReason = 300
	// maxMessage limits a component's own message.
	maxMessage = 1000
)

// Condition returns the condition of this kind, or nil.
func Condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// MadeFor returns the node of a pod. For an unscheduled pod of a DaemonSet this is the node that it was created for.
func MadeFor(pod *corev1.Pod) string {
	if may := AllowedNodes(pod); pod.Spec.NodeName == "" && len(may) == 1 {
		return may[0]
	}
	return pod.Spec.NodeName
}

// AllowedNodes returns the nodes that the pod's affinity names; none if it names none.
func AllowedNodes(pod *corev1.Pod) (names []string) {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return nil
	}
	required := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return nil
	}
	for _, term := range required.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				names = append(names, f.Values[0])
			}
		}
	}
	return names
}

// Ready reports whether the pod has the condition Ready.
func Ready(pod *corev1.Pod) bool {
	c := Condition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// UnreadyUntil returns the time at which the pod will have been unready for longer than patience.
func UnreadyUntil(pod *corev1.Pod) time.Time {
	since := pod.CreationTimestamp.Time
	if c := Condition(pod, corev1.PodReady); c != nil && !c.LastTransitionTime.IsZero() {
		since = c.LastTransitionTime.Time
	}
	return since.Add(patience)
}

// Trouble returns why a pod will not become ready by itself, or an empty string. waiting is what its process reports to wait for, if it does. The text
// contains no durations, so that it stays the same while the problem does.
func Trouble(pod *corev1.Pod, waiting string, now time.Time) string {
	if !pod.DeletionTimestamp.IsZero() {
		return ""
	}
	if c := Condition(pod, v1alpha1.PodConditionNorthbound); Ready(pod) && c != nil && c.Status == corev1.ConditionFalse {
		return Cut(c.Message, maxMessage)
	}
	if Ready(pod) {
		return ""
	}
	if c := Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return fmt.Sprintf("pod %s has no node: %s", pod.Name, c.Message)
	}
	for _, c := range pod.Status.ContainerStatuses {
		if why := ContainerTrouble(c); why != "" {
			return fmt.Sprintf("node %s: %s", pod.Spec.NodeName, why)
		}
	}
	if now.Before(UnreadyUntil(pod)) {
		return ""
	}
	if waiting == "" {
		waiting = fmt.Sprintf("see kubectl -n %s describe pod %s, and its logs", pod.Namespace, pod.Name)
	}
	return Cut(fmt.Sprintf("node %s: not ready for a long time: %s", pod.Spec.NodeName, waiting), maxMessage)
}

// startingReasons are waiting reasons of a container that are normal during its start.
var startingReasons = []string{"", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"}

// ContainerTrouble returns why a container does not run, or an empty string.
func ContainerTrouble(c corev1.ContainerStatus) string {
	if w := c.State.Waiting; w != nil && !slices.Contains(startingReasons, w.Reason) {
		return firstLine(w.Reason + ": " + w.Message)
	}
	for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
		if t == nil || t.ExitCode == 0 {
			continue
		}
		if said := lastWords(t.Message); said != "" {
			return said
		}
		return fmt.Sprintf("the container ended with exit code %d (%s)", t.ExitCode, t.Reason)
	}
	return ""
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return Cut(line, maxReason)
}

// lastWords returns the reason for the end of a container: the last line of its termination message, which may be the end
// of its log. If that line is a log entry that is no error, as after a kill, the result is empty.
func lastWords(s string) string {
	s = strings.TrimSpace(s)
	line := s[strings.LastIndex(s, "\n")+1:]
	var entry struct{ Level, Msg, Error string }
	if json.Unmarshal([]byte(line), &entry) == nil {
		if entry.Level != "error" {
			return ""
		}
		line = strings.TrimSuffix(entry.Msg+": "+entry.Error, ": ")
	}
	return Cut(line, maxReason)
}

// Cut limits a text to this number of bytes, and an ellipsis.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
