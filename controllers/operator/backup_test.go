// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// backUp changes what is wanted of backups, and returns the API server's answer.
func (s *story) backUp(t *testing.T, change func(*v1alpha1.Backup)) error {
	c := s.cluster(t)
	before := c.DeepCopy()
	change(&c.Spec.Central.Backup)
	return s.admin.Patch(t.Context(), c, client.MergeFrom(before))
}

func (s *story) backedUp(t *testing.T) {
	g := NewWithT(t)
	for _, wrong := range []string{"Before", "-a", "../a", "a.b"} {
		g.Expect(s.backUp(t, func(b *v1alpha1.Backup) { b.Request = wrong })).NotTo(Succeed(), wrong)
	}
	g.Expect(s.backUp(t, func(b *v1alpha1.Backup) { b.Request = "before-it" })).To(Succeed())
	g.Eventually(s.condition(t, "Progressing")).Should(ContainSubstring("backup before-it waits for nodes: " + node))
	g.Expect(s.cluster(t).Status.Northbound.RequestedBackup).To(BeNil())
	s.members["nb"].set(func(status *adminapi.Status) {
		status.Backups = []adminapi.Backup{
			{Name: "b2.db", Time: time.Unix(600, 0), Rows: 2},
			{Name: "b1.db", Time: time.Unix(500, 0), Rows: 1, Request: "before-it"},
		}
	})
	g.Eventually(func() *v1alpha1.BackupStatus { return s.cluster(t).Status.Northbound.RequestedBackup }).ShouldNot(BeNil())
	nb := s.cluster(t).Status.Northbound
	g.Expect(nb.RequestedBackup.Name + nb.RequestedBackup.Node).To(Equal("b1.db" + node))
	g.Expect(nb.LastBackup.Name).To(Equal("b2.db"))
	g.Eventually(s.condition(t, "Progressing")).ShouldNot(ContainSubstring("before-it"))
	// What is told once stays, when the file goes, too.
	s.members["nb"].set(func(status *adminapi.Status) { status.Backups = nil })
	s.touch(t, "nb")
	g.Consistently(func() bool { return s.cluster(t).Status.Northbound.Requested("before-it") }).Should(BeTrue())
	g.Expect(s.cluster(t).Status.Southbound.RequestedBackup).To(BeNil())
}
