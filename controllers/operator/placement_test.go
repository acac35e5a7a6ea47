// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

// TestDatabasesWaitForANode has no node for the databases at first, then a node that is deleted before it created them.
func TestDatabasesWaitForANode(t *testing.T) {
	s := newScenario(t)
	s.createCluster(t)
	s.withoutNode(t)
	s.placed(t)
}

func (s *scenario) withoutNode(t *testing.T) {
	g := newG(t)
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(
		HavePrefix("True NoNodeForDatabases"), ContainSubstring("node-role.kubernetes.io/control-plane"), ContainSubstring("label a node")))
	mistakes.Sees(t, 10, s.condition(t, "Degraded")())
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("False"))
	g.Eventually(func() []string { return s.events(t) }).Should(ContainElement("Warning NoNodeForDatabases"))
}

func (s *scenario) placed(t *testing.T) {
	g := newG(t)
	g.Expect(s.exists(t, &appsv1.StatefulSet{}, render.NorthboundName)()).NotTo(Succeed())
	const shortLived = "control-plane-0"
	s.addNode(t, shortLived, "192.0.2.100", map[string]string{v1alpha1.ControlPlaneLabel: ""})
	set := &appsv1.StatefulSet{}
	g.Eventually(s.exists(t, set, render.NorthboundName)).Should(Succeed())
	g.Expect(s.cluster(t).Status.Northbound.BootstrapNode).To(Equal(shortLived))
	pending := func(name string) *corev1.Pod {
		pod := s.newPod(name, render.NorthboundName, "", revisionOf(set))
		pod.Spec.Affinity = set.Spec.Template.Spec.Affinity
		g.Expect(s.admin.Create(t.Context(), pod)).To(Succeed())
		return pod
	}
	s.settle(t, set, 1)
	pending("ovn-central-nb-0")

	// No database was ever created there.
	g.Expect(s.admin.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: shortLived}})).To(Succeed())
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("True NoNodeForDatabases"))
	s.addNode(t, node, "192.0.2.1", map[string]string{v1alpha1.ControlPlaneLabel: ""})
	recorded := func() []v1alpha1.DatabaseStatus {
		return []v1alpha1.DatabaseStatus{s.cluster(t).Status.Northbound, s.cluster(t).Status.Southbound}
	}
	wanted := v1alpha1.DatabaseStatus{BootstrapNode: node, Members: []v1alpha1.DatabaseMember{{Node: node, Address: "192.0.2.1"}}}
	g.Eventually(recorded).Should(HaveEach(wanted))

	// The pod waits for a node that holds no member.
	g.Eventually(func() []string {
		g.Expect(s.exists(t, set, render.NorthboundName)()).To(Succeed())
		return observed.AllowedNodes(&corev1.Pod{Spec: set.Spec.Template.Spec})
	}).Should(Equal([]string{node}))
	s.settle(t, set, 1)
	g.Eventually(s.absent(t, &corev1.Pod{}, "ovn-central-nb-0")).Should(BeTrue())
	waits := pending("ovn-central-nb-0")
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True WaitingForDatabase: the northbound database has no leader"))
	s.passAfter(t, func() {
		waits.Labels["poke"] = ""
		g.Expect(s.admin.Update(t.Context(), waits)).To(Succeed())
	})
	g.Expect(s.exists(t, &corev1.Pod{}, waits.Name)()).To(Succeed())
	g.Expect(s.admin.Delete(t.Context(), waits, client.GracePeriodSeconds(0))).To(Succeed())
}
