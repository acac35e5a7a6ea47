// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// TestAWaitingDatabaseIsRetried checks that the southbound database is retried while the northbound database waits for a
// person. No watch reports the end of the southbound failure.
func TestAWaitingDatabaseIsRetried(t *testing.T) {
	s := installed(t)
	g := newG(t)
	s.repeat()
	t.Cleanup(func() { s.repeat = k8s.OnlyEvents() })
	nb, _ := s.members["nb"].Status(t.Context())
	sb := s.members["sb"]
	sb.mu.Lock()
	before := sb.asked
	sb.silence = errors.New("starting")
	sb.mu.Unlock()
	s.members["nb"].set(func(status *adminapi.Status) {
		*status = adminapi.Status{Waiting: "no database file is here", NeedsRejoin: true}
	})
	s.touch(t, "nb")
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("True QuorumLost: the northbound database"))
	// Retries start with a short delay, because the back-off grows with each.
	g.Eventually(sb.count).Should(BeNumerically(">", before+8), "more often than changes wake the operator")
	sb.mu.Lock()
	sb.silence = nil
	sb.mu.Unlock()
	s.members["nb"].set(func(status *adminapi.Status) { *status = nb })
	s.touch(t, "nb")
	g.Eventually(s.condition(t, "Degraded")).ShouldNot(ContainSubstring("QuorumLost"))
}

// TestFailuresOfMembersNodesAreReported fills the disk of a member, which also fails to make backups, and makes nftables of its node unusable.
func TestFailuresOfMembersNodesAreReported(t *testing.T) {
	s := installed(t)
	g := newG(t)
	pod := &corev1.Pod{}
	g.Expect(s.exists(t, pod, "ovn-central-sb-0")()).To(Succeed())
	before, _ := s.members["sb"].Status(t.Context())
	for _, report := range []adminapi.Status{{Waiting: "no room", DiskFailure: "no room"}, {Waiting: "no nftables", Unguarded: "no nftables"}} {
		s.members["sb"].set(func(status *adminapi.Status) { *status = report })
		s.setReady(t, pod, false)
		g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring("ovn-central-sb: node " + node + ": " + report.Waiting))
		s.members["sb"].set(func(status *adminapi.Status) { *status = before })
		s.setReady(t, pod, true)
		g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
	}

	// A member that runs without a guard is reported as well.
	s.members["sb"].set(func(status *adminapi.Status) { status.Unguarded = "flushed" })
	s.touch(t, "sb")
	g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring("ovn-central-sb: node " + node + ": flushed"))
	s.members["sb"].set(func(status *adminapi.Status) { *status = before })
	s.touch(t, "sb")
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))

	// Other messages do not replace it.
	s.members["nb"].set(func(status *adminapi.Status) { status.BackupFailure = "no space" })
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Central.Replicas = 3 })
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(ContainSubstring(" fail: no space"), ContainSubstring("label a node")))
	s.members["nb"].set(func(status *adminapi.Status) { status.BackupFailure = "" })
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Central.Replicas = 1 })
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
}

func TestAMemberOfAnotherClusterIsNotRecorded(t *testing.T) {
	s := installed(t)
	g := newG(t)
	id := s.cluster(t).Status.Southbound.ClusterID
	s.members["sb"].set(func(status *adminapi.Status) { status.ClusterID = "30000000-0000-4000-8000-000000000001" })
	pod := &corev1.Pod{}
	g.Expect(s.exists(t, pod, "ovn-central-sb-0")()).To(Succeed())
	s.setReady(t, pod, false)
	s.setReady(t, pod, true)
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("True ForeignDatabase: southbound database: the member on node " + node))
	g.Expect(s.cluster(t).Status.Southbound.ClusterID).To(Equal(id))
}

// TestAnUnreachableMemberBlocksNothing adds a member that is ready and has a leader but that the operator cannot reach.
// Phases that do not need it continue.
func TestAnUnreachableMemberBlocksNothing(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s, w := working(t)
	g := newG(t)
	set := &appsv1.StatefulSet{}
	g.Expect(s.exists(t, set, render.NorthboundName)()).To(Succeed())
	s.world.members.setCutOff(netip.MustParseAddr("192.0.2.99"))
	pod := s.addPod(t, "ovn-central-nb-1", render.NorthboundName, node, "192.0.2.99", revisionOf(set))
	s.setReady(t, pod, true)
	g.Eventually(s.condition(t, "Progressing")).Should(ContainSubstring("is ready but does not answer on its admin endpoint, port 6651"))
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Agent.Resources = requests("30m") })
	g.Eventually(w.history).Should(Equal(forward[:4]))
	g.Expect(s.admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0))).To(Succeed())
	s.settledOn(t, s.cluster(t).Spec.Image) // the last replaced pod exists again, and its template is not the next one
	w.forget()
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Agent.Resources = corev1.ResourceRequirements{} })
	g.Eventually(w.history).Should(Equal(forward[:4]))
	s.settledOn(t, s.cluster(t).Spec.Image)
}
