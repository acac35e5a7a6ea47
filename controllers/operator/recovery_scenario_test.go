// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// recover requests a recovery and returns the API server's answer.
func (s *scenario) recover(t *testing.T, r v1alpha1.Recovery) error {
	c := s.cluster(t)
	before := c.DeepCopy()
	c.Spec.Central.Recovery = &r
	return s.admin.Patch(t.Context(), c, client.MergeFrom(before))
}

// touch wakes the operator by a change of a pod's readiness.
func (s *scenario) touch(t *testing.T, db string) {
	g := newG(t)
	pod := &corev1.Pod{}
	g.Expect(s.exists(t, pod, s.pods[db].Name)()).To(Succeed())
	s.setReady(t, pod, false)
	s.setReady(t, pod, true)
}

// eachTriedAgain checks that the southbound database is retried while the northbound database waits for a person. No
// watch reports the end of the southbound failure.
func (s *scenario) eachTriedAgain(t *testing.T) {
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

func (s *scenario) recovered(t *testing.T) {
	g := newG(t)
	for _, wrong := range []v1alpha1.Recovery{
		{},
		{ID: "x", Northbound: "Nowhere"},
		{ID: "x", Southbound: v1alpha1.RecoverBackup},
		{ID: "x", Northbound: v1alpha1.RecoverMember, Backup: "b"},
		{ID: "x", Northbound: v1alpha1.RecoverBackup, Backup: "../b"},
		{ID: "x", Northbound: v1alpha1.RecoverNone, Southbound: v1alpha1.RecoverNone},
	} {
		g.Expect(s.recover(t, wrong)).NotTo(Succeed(), "%+v", wrong)
	}
	backup := adminapi.Backup{Name: "b.db", Time: time.Unix(1000, 0), Rows: 7}
	s.members["nb"].set(func(status *adminapi.Status) {
		status.Backups = []adminapi.Backup{backup}
		status.Members = []adminapi.Member{{ServerID: "serv", Address: status.Address}}
	})
	g.Expect(s.recover(t, v1alpha1.Recovery{ID: "r0", Southbound: v1alpha1.RecoverNone})).To(Succeed())
	nb := func() v1alpha1.DatabaseStatus { return s.cluster(t).Status.Northbound }
	phase := func() v1alpha1.RecoveryPhase {
		if r := nb().Recovery; r != nil {
			return r.Phase
		}
		return ""
	}
	g.Eventually(phase).Should(Equal(v1alpha1.RecoveryRefused))
	g.Expect(nb().Recovery.Message).To(ContainSubstring("has a leader"))
	g.Expect(nb().LastBackup.Rows).To(Equal(int64(7)))
	old := nb()

	s.members["nb"].set(func(status *adminapi.Status) {
		*status = adminapi.Status{Waiting: "no database file is here", NeedsRejoin: true, Backups: status.Backups}
	})
	s.touch(t, "nb")
	g.Eventually(s.condition(t, "Degraded")).Should(SatisfyAll(HavePrefix("True QuorumLost: the northbound database has lost its quorum"),
		ContainSubstring(node+" (its data is lost)"), ContainSubstring("set spec.central.recovery")))
	g.Expect(s.recover(t, v1alpha1.Recovery{ID: "r1", Northbound: v1alpha1.RecoverMember, Southbound: v1alpha1.RecoverNone})).To(Succeed())
	g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring("finds no member that answers and has the database's data"))
	g.Expect(nb().ClusterID).To(Equal(old.ClusterID))

	g.Expect(s.recover(t, v1alpha1.Recovery{ID: "r1", Northbound: v1alpha1.RecoverBackup, Southbound: v1alpha1.RecoverNone})).To(Succeed())
	g.Eventually(phase).Should(Equal(v1alpha1.RecoveryCreating))
	begun := nb()
	g.Expect(begun.ClusterID).To(BeEmpty())
	g.Expect(begun.Recovery.Backup).To(Equal("b.db"))
	g.Expect(begun.BootstrapNode).To(Equal(node))
	// A member that has not seen the recovery yet does not count as the new cluster.
	s.members["nb"].set(func(status *adminapi.Status) {
		*status = adminapi.Status{ClusterID: old.ClusterID, ServerID: "server-nb", Address: "ssl:192.0.2.1:6643", Role: adminapi.RoleLeader, Term: 9, Connected: true}
	})
	s.touch(t, "nb")
	g.Consistently(func() string { return nb().ClusterID }).Should(BeEmpty())
	const anew = "10000000-0000-4000-8000-000000000002"
	s.members["nb"].set(func(status *adminapi.Status) {
		*status = adminapi.Status{
			ClusterID: anew, ServerID: "server-nb-2", Address: "ssl:192.0.2.1:6643", Role: adminapi.RoleLeader, Term: 1, Connected: true, Since: begun.Since.Time,
		}
	})
	s.touch(t, "nb")
	g.Eventually(phase).Should(Equal(v1alpha1.RecoveryFilling))
	g.Eventually(func() string { return nb().Leader }).Should(Equal(node))
	g.Expect(nb().ClusterID).To(Equal(anew))

	writer := s.addPod(t, "writer", render.ControllerName, node, "192.0.2.1", "")
	writer.Labels[render.Northbound.WrittenLabel] = old.ClusterID
	g.Expect(s.admin.Update(t.Context(), writer)).To(Succeed())
	g.Consistently(phase).Should(Equal(v1alpha1.RecoveryFilling))
	writer.Labels[render.Northbound.WrittenLabel] = anew
	g.Expect(s.admin.Update(t.Context(), writer)).To(Succeed())
	g.Eventually(phase).Should(Equal(v1alpha1.RecoveryCompleted))
	g.Eventually(s.condition(t, "Degraded")).ShouldNot(ContainSubstring("QuorumLost"))
	g.Eventually(func() []string { return s.events(t) }).Should(
		ContainElements("Warning QuorumLost", "Warning DatabaseRecovery", "Normal DatabaseRecovered"))
	g.Expect(s.cluster(t).Status.Southbound.Recovery).To(BeNil())
	g.Expect(s.admin.Delete(t.Context(), writer, client.GracePeriodSeconds(0))).To(Succeed())
	g.Expect(nb().Recovery.ID).To(Equal("r1"))
}
