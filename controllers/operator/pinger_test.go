// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/controllers/operator/upgrade"
)

// TestThePingerRunsOnRequest enables and disables it. Its pods never become ready: the network does not need them.
func TestThePingerRunsOnRequest(t *testing.T) {
	s := installed(t)
	g := newG(t)
	g.Expect(s.absent(t, &appsv1.DaemonSet{}, render.PingerName)()).To(BeTrue())
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Pinger.Mode = v1alpha1.PingerEnabled })
	var set appsv1.DaemonSet
	g.Eventually(s.exists(t, &set, render.PingerName)).Should(Succeed())
	g.Expect(set.Spec.Template.Spec.HostNetwork).To(BeFalse())
	g.Expect(set.Spec.UpdateStrategy.Type).To(Equal(appsv1.RollingUpdateDaemonSetStrategyType))
	g.Eventually(func() []string {
		var names []string
		for _, row := range s.cluster(t).Status.Components {
			names = append(names, row.Name)
		}
		return names
	}).Should(Equal(append(render.Components(), render.PingerName, render.MonitorName)))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"))
	g.Expect(s.condition(t, "Degraded")()).To(HavePrefix("False"))
	s.settle(t, &set, 2)
	g.Eventually(func() v1alpha1.ComponentStatus { return s.row(t, render.PingerName) }).Should(HaveField("Ready", int32(2)))
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False"))

	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Pinger.Mode = v1alpha1.PingerDisabled })
	g.Eventually(s.absent(t, &appsv1.DaemonSet{}, render.PingerName)).Should(BeTrue())
	g.Eventually(func() v1alpha1.ComponentStatus { return s.row(t, render.PingerName) }).Should(BeZero())
}

// TestUpgradesReplaceThePingerLast checks its update strategy while pods of other components are replaced, and after that.
func TestUpgradesReplaceThePingerLast(t *testing.T) {
	for stage, want := range map[v1alpha1.UpgradeStage]appsv1.DaemonSetUpdateStrategyType{
		v1alpha1.StageNodes: appsv1.OnDeleteDaemonSetStrategyType, "": appsv1.RollingUpdateDaemonSetStrategyType,
	} {
		objects := render.PingerObjects(render.Config{Spec: v1alpha1.OVNClusterSpec{Pinger: v1alpha1.Pinger{Mode: v1alpha1.PingerEnabled}}})
		upgrade.KeepPods(rollout.Plan{Stage: stage}, objects)
		if got := objects[0].(*appsv1.DaemonSet).Spec.UpdateStrategy; got.Type != want || (got.RollingUpdate == nil) != (stage != "") {
			t.Errorf("in stage %q: %+v", stage, got)
		}
	}
}
