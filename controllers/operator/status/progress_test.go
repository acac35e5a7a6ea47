// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

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
