// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

func TestEveryComponentIsAvailable(t *testing.T) {
	s := installed(t)
	g := newG(t)
	s.settle(t, s.named(&appsv1.DaemonSet{}, render.AgentName), 2)
	g.Eventually(s.condition(t, "Available")).Should(HavePrefix("True"))
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False"))
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
	c := s.cluster(t)
	g.Expect(c.Status.ObservedGeneration).To(Equal(c.Generation))
	names := []string{}
	for _, row := range c.Status.Components {
		names = append(names, row.Name)
		g.Expect(row.Ready).To(Equal(row.Desired), row.Name)
		g.Expect(row.Image).To(Equal("kiln.local/kiln:test"), row.Name)
		g.Expect(row.Message).To(BeEmpty(), row.Name)
	}
	g.Expect(names).To(Equal(append(render.Components(), render.MonitorName)))
}

func TestAFailedContainerIsReported(t *testing.T) {
	s := installed(t)
	g := newG(t)
	set := &appsv1.DaemonSet{}
	g.Expect(s.exists(t, set, render.OpenVSwitch)()).To(Succeed())
	pod := s.addPod(t, "ovs-ovn-x", render.OpenVSwitch, "worker-1", "192.0.2.11", set.Spec.Template.Annotations[render.TemplateAnnotation])
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "ovs-ovn", Image: "kiln", ImageID: "kiln",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, Message: "starting\nthere is no interface eth9: set spec.nodes.tunnelInterface to one of eth0, eth1\n",
		}},
	}}
	g.Expect(s.admin.Status().Update(t.Context(), pod)).To(Succeed())
	why := "node worker-1: there is no interface eth9: set spec.nodes.tunnelInterface to one of eth0, eth1"
	g.Eventually(s.condition(t, "Degraded")).Should(Equal("True ComponentTrouble: ovs-ovn: " + why))
	g.Expect(s.row(t, render.OpenVSwitch).Message).To(Equal(why))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"), "one broken node does not make the network unavailable")
	s.setReady(t, pod, true)
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
}
