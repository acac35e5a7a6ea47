// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

func TestAnotherPassWritesNothing(t *testing.T) {
	s := installed(t)
	g := newG(t)
	before := s.stable(t)
	g.Expect(len(before)).To(BeNumerically(">", 35))
	// A reconciler without its in-memory state applies every object again.
	again := *s.operate
	applier := *again.applier
	applier.Forget()
	again.applier = &applier
	result, err := again.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "default"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(BeNumerically("~", 365*24*time.Hour*2/3, 24*time.Hour), "it wakes up to renew certificates")
	g.Expect(s.versions(t)).To(Equal(before))
}

func TestChangesOfOthersAreReverted(t *testing.T) {
	s := installed(t)
	g := newG(t)
	controller := &appsv1.Deployment{}
	g.Expect(s.exists(t, controller, render.ControllerName)()).To(Succeed())
	changed := controller.DeepCopy()
	changed.Spec.Template.Spec.Containers[0].Image = "example.com/other:1"
	changed.Spec.Replicas = new(int32(4))
	g.Expect(s.admin.Patch(t.Context(), changed, client.MergeFrom(controller))).To(Succeed())
	g.Eventually(func() string {
		g.Expect(s.exists(t, controller, render.ControllerName)()).To(Succeed())
		return controller.Spec.Template.Spec.Containers[0].Image
	}).Should(Equal("kiln.local/kiln:test"))
	g.Expect(*controller.Spec.Replicas).To(Equal(int32(1)))
	s.settle(t, controller, 1)

	service := &corev1.Service{}
	g.Expect(s.exists(t, service, "ovn-nb")()).To(Succeed())
	g.Expect(s.admin.Delete(t.Context(), service)).To(Succeed())
	g.Eventually(s.exists(t, &corev1.Service{}, "ovn-nb")).Should(Succeed())
}
