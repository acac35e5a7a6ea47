// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// lastTransitionTime is the time of the last change of status: a new message does not change it.
func TestTheTransitionTimeChangesWithTheStatus(t *testing.T) {
	before := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	server := apiServer(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
		Type: v1alpha1.NodeConditionKubeProxy, Status: corev1.ConditionTrue, Reason: ReasonRulesFound, Message: "in one table", LastTransitionTime: before,
	}}}})
	r := &KubeProxyCheck{Client: server, Node: "here"}
	condition := func() corev1.NodeCondition {
		t.Helper()
		node := &corev1.Node{}
		must.Succeed(t, server.Get(t.Context(), client.ObjectKey{Name: "here"}, node))
		return node.Status.Conditions[0]
	}
	must.Succeed(t, r.setCondition(t.Context(), corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: ReasonRulesFound, Message: "in two tables"}))
	if c := condition(); c.Message != "in two tables" || !c.LastTransitionTime.Equal(&before) {
		t.Errorf("after a change of the message: %+v, want lastTransitionTime %s", c, before)
	}
	must.Succeed(t, r.setCondition(t.Context(), corev1.NodeCondition{Status: corev1.ConditionFalse, Reason: ReasonNoRules}))
	if c := condition(); c.Status != corev1.ConditionFalse || !before.Before(&c.LastTransitionTime) {
		t.Errorf("after a change of the status: %+v, want lastTransitionTime after %s", c, before)
	}
}
