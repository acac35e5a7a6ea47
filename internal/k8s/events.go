// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"fmt"
	"hash/fnv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// EventRecorder is the name that the controller uses in the events it reports.
const EventRecorder = "kube-ovn-controller"

// actionReconcile is the action in every event of the controller (events.k8s.io/v1, action).
const actionReconcile = "Reconcile"

// maxNote is the length of the longest note that the API server accepts (events.k8s.io/v1). It refuses events with a longer one.
const maxNote = 1024

// Warn reports a problem with obj that its user can fix. Reason and message are the same as in the condition. Warn truncates a
// message that is too long for an event.
func Warn(r events.EventRecorder, obj runtime.Object, reason, message string) {
	report(r, obj, corev1.EventTypeWarning, reason, message)
}

// Note reports a change of obj that needs no action.
func Note(r events.EventRecorder, obj runtime.Object, reason, message string) {
	report(r, obj, corev1.EventTypeNormal, reason, message)
}

func report(r events.EventRecorder, obj runtime.Object, kind, reason, message string) {
	if ellipsis := "…"; len(message) > maxNote {
		message = strings.ToValidUTF8(message[:maxNote-len(ellipsis)], "") + ellipsis
	}
	// Each message has another action. The recorder counts events of one object with the same reason and action as one series, and keeps the
	// text of the first (client-go, tools/events, getKey). With a single action, users would keep reading a problem that is already solved.
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(message))
	r.Eventf(obj, nil, kind, reason, fmt.Sprintf("%s/%08x", actionReconcile, sum.Sum32()), "%s", message)
}

// WarnAnew is Warn with the reason and message of each False condition of obj of these types, unless the condition was the same before.
func WarnAnew(r events.EventRecorder, obj runtime.Object, before, after []metav1.Condition, types ...string) {
	for _, conditionType := range types {
		c := apimeta.FindStatusCondition(after, conditionType)
		if c != nil && c.Status == metav1.ConditionFalse && !SameMessage(before, after, conditionType) {
			Warn(r, obj, c.Reason, c.Message)
		}
	}
}
