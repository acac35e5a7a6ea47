// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/gate"
)

// TestARollbackStopsOperandsOfLaterVersions goes to an image whose members report no level, back, and to one whose members report it.
func TestARollbackStopsOperandsOfLaterVersions(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s := newInstallation(t)
	w := s.atWork(t)
	g := newG(t)
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Pinger.Mode = v1alpha1.PingerEnabled })
	pinger, monitor := &appsv1.DaemonSet{}, &appsv1.Deployment{}
	pingerImage := func() string {
		if s.exists(t, pinger, render.PingerName)() != nil {
			return ""
		}
		return pinger.Spec.Template.Spec.Containers[0].Image
	}
	settle := func(image string) {
		t.Helper()
		g.Eventually(func() string { // its pods follow at the end of the upgrade
			return pingerImage() + " " + string(pinger.Spec.UpdateStrategy.Type)
		}).Should(Equal(image + " RollingUpdate"))
		s.settle(t, pinger, 2)
		g.Eventually(s.exists(t, monitor, render.MonitorName)).Should(Succeed())
		s.settle(t, monitor, 1)
	}
	settle(imageNow)

	for _, m := range s.members {
		m.setOld(true)
	}
	w.hold(render.NorthboundName)
	s.setImage(t, imageNext)
	g.Eventually(w.history).Should(ContainElement("ovn-central-nb/" + node))
	g.Expect(pingerImage()).To(Equal(imageNow), "no member has reported what the image has")
	g.Expect(s.exists(t, monitor, render.MonitorName)()).To(Succeed())
	w.hold("")
	g.Eventually(s.absent(t, &appsv1.DaemonSet{}, render.PingerName)).Should(BeTrue())
	g.Eventually(s.absent(t, &appsv1.Deployment{}, render.MonitorName)).Should(BeTrue())
	g.Eventually(s.absent(t, &corev1.Secret{}, render.MonitorSecret)).Should(BeTrue())
	g.Eventually(s.absent(t, &corev1.Service{}, render.MonitorName)).Should(BeTrue())
	s.settledOn(t, imageNext)
	g.Eventually(s.condition(t, "Available")).Should(ContainSubstring("kube-ovn-pinger, kube-ovn-monitor: stopped"))

	s.setImage(t, imageNow)
	settle(imageNow)
	s.settledOn(t, imageNow)
	g.Eventually(s.condition(t, "Available")).ShouldNot(ContainSubstring("stopped"))

	for _, m := range s.members {
		m.setOld(false)
	}
	s.setImage(t, imageNext)
	settle(imageNext)
	s.settledOn(t, imageNext)
}
