// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

// TestDrainsEndWhereNothingServes evicts a pod that is not ready while the component's other pod is not ready either.
func TestDrainsEndWhereNothingServes(t *testing.T) {
	const namespace = "drains"
	w := &theWorld
	g := newG(t)
	g.Expect(w.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	blocked := map[string]bool{}
	for _, o := range render.DisruptionBudgets(render.Config{Namespace: namespace}) {
		budget := o.(*policyv1.PodDisruptionBudget)
		g.Expect(w.admin.Create(t.Context(), budget)).To(Succeed())
		budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, ExpectedPods: 2, DesiredHealthy: 1}
		g.Expect(w.admin.Status().Update(t.Context(), budget)).To(Succeed())
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: budget.Name, Namespace: namespace, Labels: budget.Spec.Selector.MatchLabels},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		g.Expect(w.admin.Create(t.Context(), pod)).To(Succeed())
		t.Cleanup(func() { _ = w.admin.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) })
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		g.Expect(w.admin.Status().Update(t.Context(), pod)).To(Succeed())
		err := w.admin.SubResource("eviction").Create(t.Context(), pod, &policyv1.Eviction{})
		if blocked[budget.Name] = apierrors.IsTooManyRequests(err); !blocked[budget.Name] {
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	g.Expect(blocked).To(Equal(map[string]bool{
		render.NorthboundName: true, render.SouthboundName: true, // its restart may restore the quorum
		render.NorthdName: false, render.ControllerName: false,
	}))
}
