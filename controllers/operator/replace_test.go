// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

func TestCanaryNodesComeFirst(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s := newInstallation(t)
	w := s.atWork(t)
	g := newG(t)
	err := s.tryUpgrade(t, v1alpha1.Upgrade{Mode: v1alpha1.UpgradeCanary})
	g.Expect(err).To(MatchError(ContainSubstring("mode Canary needs canaryNodeSelector")))
	for _, wrong := range []intstr.IntOrString{intstr.FromInt32(0), intstr.FromString("0%"), intstr.FromString("101%"), intstr.FromString("2")} {
		err = s.tryUpgrade(t, v1alpha1.Upgrade{MaxUnavailable: &wrong})
		g.Expect(err).To(MatchError(ContainSubstring("must be a number from 1, or a percentage from 1% to 100%")), wrong.String())
	}
	selector := map[string]string{"example.com/canary": "true"}
	g.Expect(s.tryUpgrade(t, v1alpha1.Upgrade{
		Mode: v1alpha1.UpgradeCanary, CanaryNodeSelector: selector, MaxUnavailable: new(intstr.FromString("50%")),
	})).To(Succeed())
	s.setImage(t, imageNext)
	g.Eventually(s.condition(t, "Degraded")).Should(And(
		HavePrefix("True ReplacingStopped"), ContainSubstring("no node that answers matches spec.upgrade.canaryNodeSelector")))
	worker := &corev1.Node{}
	g.Expect(s.admin.Get(t.Context(), client.ObjectKey{Name: "worker-1"}, worker)).To(Succeed())
	maps.Copy(worker.Labels, selector)
	g.Expect(s.admin.Update(t.Context(), worker)).To(Succeed())
	g.Eventually(s.condition(t, "Progressing")).Should(SatisfyAll(
		HavePrefix("False ReplacingPaused: 1 of 2 nodes updated; the canary nodes are done"), ContainSubstring("Automatic")))
	g.Expect(s.condition(t, "Degraded")()).To(HavePrefix("False"))
	s.stable(t)
	g.Expect(w.history()).To(Equal(forward[2:4]))
	g.Expect(s.tryUpgrade(t, v1alpha1.Upgrade{CanaryNodeSelector: selector})).To(Succeed())
	s.settledOn(t, imageNext)
	g.Expect(w.history()).To(Equal(slices.Concat(forward[2:4], forward[:2], forward[4:])))
	delete(worker.Labels, "example.com/canary")
	g.Expect(client.IgnoreNotFound(s.admin.Update(t.Context(), worker))).To(Succeed())
}

// TestUpgradeAndRollback sets a new image and, once every component runs it, the previous one.
func TestUpgradeAndRollback(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s, w := working(t)
	s.upgraded(t, w)
	w.forget()
	s.rolledBack(t, w)
}

func (s *scenario) upgraded(t *testing.T, w *workloads) {
	g := newG(t)
	g.Expect(s.cluster(t).Status.Upgrade.Images).To(Equal([]string{imageNow}))
	left := s.shutDown(t)
	for _, m := range s.members {
		m.offer("7.1.0", "7.10.0")
	}
	s.setImage(t, imageNext)
	s.settledOn(t, imageNext)
	g.Expect(w.history()).To(Equal(forward))
	for db, m := range s.members {
		g.Expect(m.Schemas(t.Context())).To(Equal(adminapi.Schemas{Database: "7.10.0", Image: "7.10.0"}), db)
	}
	g.Eventually(func() []string { return s.events(t) }).Should(ContainElement("Normal SchemaConverted"))
	g.Eventually(s.absent(t, &appsv1.DaemonSet{}, render.ImageName)).Should(BeTrue(), "all nodes have the image")
	g.Expect(s.cluster(t).Status.Upgrade.Images).To(Equal([]string{imageNow, imageNext}))
	for _, row := range s.cluster(t).Status.Components {
		g.Expect(row.Updated).To(Equal(row.Desired), row.Name)
		if row.Name != render.MonitorName { // it runs the operator's image
			g.Expect(row.Image).To(Equal(imageNext), row.Name)
		}
	}
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"))
	g.Expect(s.condition(t, "Degraded")()).To(HavePrefix("False"))
	g.Expect(s.admin.Delete(t.Context(), left, client.GracePeriodSeconds(0))).To(Succeed())
}

// shutDown creates a failed pod of a Deployment, as a kubelet leaves it when its node shuts down. It stays until it is
// deleted.
func (s *scenario) shutDown(t *testing.T) *corev1.Pod {
	t.Helper()
	pod := s.newPod("northd-shut-down", render.NorthdName, "worker-1", "of-another-time")
	pod.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "northd", UID: "u", Controller: new(true)},
	}
	if err := s.admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Terminated", ContainerStatuses: []corev1.ContainerStatus{{
		Name: render.NorthdName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}},
	}}}
	if err := s.admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func (s *scenario) rolledBack(t *testing.T, w *workloads) {
	g := newG(t)
	for _, m := range s.members {
		m.offer("7.10.0", "7.1.0")
	}
	s.setImage(t, imageNow)
	s.settledOn(t, imageNow)
	for db, m := range s.members {
		g.Expect(m.Schemas(t.Context())).To(Equal(adminapi.Schemas{Database: "7.10.0", Image: "7.1.0"}), "%s keeps the newer schema", db)
	}
	// The order of the stages is reversed, and the agent precedes Open vSwitch. The order among databases and among
	// nodes is the same.
	g.Expect(w.history()).To(Equal(slices.Concat(forward[7:], forward[6:7], forward[4:6], []string{forward[1], forward[0], forward[3], forward[2]})))
	g.Expect(s.cluster(t).Status.Upgrade.Images).To(Equal([]string{imageNow}))
}

// TestRollbackOfAnUnfinishedUpgrade sets the image back after nodes and databases have the new image.
func TestRollbackOfAnUnfinishedUpgrade(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s, w := working(t)
	g := newG(t)
	w.hold(render.SouthboundName) // otherwise northd may get the image before the rollback
	s.setImage(t, imageNext)
	g.Eventually(w.history).Should(ContainElement("ovn-central-sb/control-plane-1"))
	s.setImage(t, imageNow)
	w.hold("")
	s.settledOn(t, imageNow)
	northd := slices.Index(w.history(), "ovn-central-northd/control-plane-1")
	g.Expect(northd).To(Equal(-1), "it never had the image that was set back: %v", w.history())
	counts := map[string]int{}
	for _, name := range w.history() {
		counts[name]++
	}
	for _, name := range forward[:4] {
		g.Expect(counts[name]).To(Equal(2), name)
	}
}

// failsAndReturns makes the only pod of a component unready, and ready again.
func (s *scenario) failsAndReturns(t *testing.T, component string) {
	t.Helper()
	g := newG(t)
	var pods corev1.PodList
	g.Expect(s.admin.List(t.Context(), &pods, client.MatchingLabels{v1alpha1.ComponentLabel: component})).To(Succeed())
	g.Expect(pods.Items).To(HaveLen(1))
	s.setReady(t, &pods.Items[0], false)
	g.Eventually(s.condition(t, "Available")).Should(Equal("False WaitingForComponents: not serving yet: " + component))
	s.setReady(t, &pods.Items[0], true)
	g.Eventually(s.condition(t, "Available")).Should(HavePrefix("True"))
}

func TestAFailingImageStopsTheUpgrade(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s, w := working(t)
	g := newG(t)
	w.fail(imageBroken, true)
	s.setImage(t, imageBroken)
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(
		HavePrefix("True ReplacingStopped"), ContainSubstring("node control-plane-1: ErrImagePull: no such image"),
		ContainSubstring("0 of 2 nodes updated"), ContainSubstring("set the previous spec.image")))
	mistakes.Sees(t, 12, s.condition(t, "Degraded")())
	g.Expect(s.condition(t, "Progressing")()).To(HavePrefix("False ReplacingStopped"))
	g.Eventually(func() []string { return s.events(t) }).Should(ContainElement("Warning ReplacingStopped"))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"))
	controller := &appsv1.Deployment{}
	g.Expect(s.exists(t, controller, render.ControllerName)()).To(Succeed())
	g.Expect(controller.Spec.Paused).To(BeTrue(), "it is held until its turn comes")
	s.stable(t)
	g.Expect(w.history()).To(BeEmpty(), "the nodes keep their pods while the image cannot be pulled")
	s.failsAndReturns(t, render.NorthdName)
	g.Expect(s.exists(t, &appsv1.DaemonSet{}, render.ImageName)()).To(Succeed())
	s.setImage(t, imageNow)
	s.settledOn(t, imageNow)
	g.Eventually(s.absent(t, &appsv1.DaemonSet{}, render.ImageName)).Should(BeTrue())
	g.Expect(w.history()).To(BeEmpty())
	g.Expect(s.exists(t, controller, render.ControllerName)()).To(Succeed())
	g.Expect(controller.Spec.Paused).To(BeFalse())
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
}

func TestAPausedUpgradeReplacesNothing(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s, w := working(t)
	g := newG(t)
	g.Expect(s.tryUpgrade(t, v1alpha1.Upgrade{Mode: v1alpha1.UpgradePaused})).To(Succeed())
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Controller.Resources = requests("10m") })
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix(
		"False ReplacingPaused: kube-ovn-controller: 0 of 1 updated; paused: set spec.upgrade.mode to Automatic"))
	s.stable(t)
	g.Expect(w.history()).To(BeEmpty())
	g.Expect(s.tryUpgrade(t, v1alpha1.Upgrade{})).To(Succeed())
	g.Eventually(w.history).Should(Equal(forward[7:]), "only what changed is replaced")
	s.settledOn(t, imageNow)
}
