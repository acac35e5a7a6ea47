// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// EventRecorder is the name under which the controller reports events.
const EventRecorder = "kube-ovn-controller"

// actionReconcile is what the controller was doing, in every event it reports (events.k8s.io/v1, action).
const actionReconcile = "Reconcile"

// Warn reports a problem with obj that its user can mend. Reason and message are those of the condition that lasts.
func Warn(r events.EventRecorder, obj runtime.Object, reason, message string) {
	r.Eventf(obj, nil, corev1.EventTypeWarning, reason, actionReconcile, "%s", message)
}

// Tell reports a change of obj that is worth an event.
func Tell(r events.EventRecorder, obj runtime.Object, reason, message string) {
	r.Eventf(obj, nil, corev1.EventTypeNormal, reason, actionReconcile, "%s", message)
}
