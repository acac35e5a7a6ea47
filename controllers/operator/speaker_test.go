// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// TestTheSpeakerRunsOnRequest adds and removes spec.speaker.
func TestTheSpeakerRunsOnRequest(t *testing.T) {
	s := installed(t)
	g := newG(t)
	g.Expect(s.absent(t, &appsv1.DaemonSet{}, render.SpeakerName)()).To(BeTrue())
	g.Expect(s.absent(t, &corev1.ServiceAccount{}, render.SpeakerName)()).To(BeTrue())
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) {
		spec.Speaker = &v1alpha1.Speaker{ASN: 64512, Peers: []v1alpha1.SpeakerPeer{{Address: "192.0.2.254", ASN: 64513}}}
	})
	var set appsv1.DaemonSet
	g.Eventually(s.exists(t, &set, render.SpeakerName)).Should(Succeed())
	g.Expect(set.Spec.Template.Spec.NodeSelector).To(HaveKeyWithValue(v1alpha1.SpeakerNodeLabel, "true"))
	g.Eventually(s.exists(t, &corev1.Service{}, render.SpeakerName)).Should(Succeed())
	g.Eventually(s.condition(t, v1alpha1.ConditionPeersEstablished)).Should(HavePrefix("False NoSessions"))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"))

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: "speaker-a", Labels: set.Spec.Template.Labels},
		Spec:       corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "image"}}},
	}
	admin := theWorld.admin
	g.Expect(admin.Create(t.Context(), pod)).To(Succeed())
	t.Cleanup(func() { _ = admin.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) })
	report := func(message string) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.PodConditionPeers, Status: corev1.ConditionFalse, Message: message}}
		g.Expect(admin.Status().Update(t.Context(), pod)).To(Succeed())
	}
	report("192.0.2.254 Down")
	g.Eventually(s.condition(t, v1alpha1.ConditionPeersEstablished)).Should(And(HavePrefix("False SessionDown"), ContainSubstring("node node-a with 192.0.2.254")))
	report("192.0.2.254 Established")
	g.Eventually(s.condition(t, v1alpha1.ConditionPeersEstablished)).Should(HavePrefix("True Established"))
	g.Expect(s.cluster(t).Status.Speaker).To(HaveField("Established", int32(1)))

	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Speaker = nil })
	g.Eventually(s.absent(t, &appsv1.DaemonSet{}, render.SpeakerName)).Should(BeTrue())
	g.Eventually(s.absent(t, &corev1.ServiceAccount{}, render.SpeakerName)).Should(BeTrue())
	g.Eventually(func() *v1alpha1.SpeakerStatus { return s.cluster(t).Status.Speaker }).Should(BeNil())
}

// TestTheStatusOfSessionsIsBounded reads conditions as a stolen token can write them.
