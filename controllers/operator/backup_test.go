// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// backUp changes the backup settings of the spec and returns the API server's answer.
func (s *scenario) backUp(t *testing.T, change func(*v1alpha1.Backup)) error {
	c := s.cluster(t)
	before := c.DeepCopy()
	change(&c.Spec.Central.Backup)
	return s.admin.Patch(t.Context(), c, client.MergeFrom(before))
}

func TestARequestedBackupIsReported(t *testing.T) {
	s := installed(t)
	g := newG(t)
	for _, wrong := range []string{"Before", "-a", "../a", "a.b"} {
		g.Expect(s.backUp(t, func(b *v1alpha1.Backup) { b.Request = wrong })).NotTo(Succeed(), wrong)
	}
	g.Expect(s.backUp(t, func(b *v1alpha1.Backup) { b.Request = "before-it" })).To(Succeed())
	g.Eventually(s.condition(t, "Progressing")).Should(ContainSubstring("backup before-it waits for node " + node))
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
	// The recorded backup stays in the status after its file is deleted.
	s.members["nb"].set(func(status *adminapi.Status) { status.Backups = nil })
	s.passWithReport(t, "nb")
	g.Expect(s.cluster(t).Status.Northbound.Requested("before-it")).To(BeTrue())
	g.Expect(s.cluster(t).Status.Southbound.RequestedBackup).To(BeNil())
}

// TestBackupsGoOnDuringAHeldUpgrade changes the claim while an upgrade is held. The backups pod keeps its version, unless
// backups would go to the wrong claim or to none.
func TestBackupsGoOnDuringAHeldUpgrade(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s, _ := working(t)
	g := newG(t)
	claim := func(name string) {
		g.Expect(s.backUp(t, func(b *v1alpha1.Backup) { b.PersistentVolumeClaim = &v1alpha1.BackupClaim{ClaimName: name} })).To(Succeed())
	}
	held := func() string {
		set := &appsv1.Deployment{}
		g.Expect(client.IgnoreNotFound(s.exists(t, set, render.BackupsName)())).To(Succeed())
		if len(set.Spec.Template.Spec.Volumes) == 0 {
			return "none"
		}
		return fmt.Sprintf("%s, paused %v", set.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, set.Spec.Paused)
	}
	claim("first")
	g.Eventually(held).Should(Equal("first, paused false"))
	s.settle(t, s.named(&appsv1.Deployment{}, render.BackupsName), 1)
	image := s.cluster(t).Spec.Image
	g.Expect(s.tryUpgrade(t, v1alpha1.Upgrade{Mode: v1alpha1.UpgradePaused})).To(Succeed())
	s.setImage(t, "kiln.local/kiln:held")
	g.Eventually(held).Should(Equal("first, paused true"))
	claim("second")
	g.Eventually(held).Should(Equal("second, paused false"))
	s.settle(t, s.named(&appsv1.Deployment{}, render.BackupsName), 1)
	s.setImage(t, "kiln.local/kiln:held-2")
	g.Eventually(held).Should(Equal("second, paused true"))
	s.settle(t, s.named(&appsv1.Deployment{}, render.BackupsName), 0)
	g.Eventually(held).Should(Equal("second, paused false"), "nothing is lost where nothing serves")

	s.setImage(t, image)
	g.Expect(s.tryUpgrade(t, v1alpha1.Upgrade{})).To(Succeed())
	g.Expect(s.backUp(t, func(b *v1alpha1.Backup) { b.PersistentVolumeClaim = nil })).To(Succeed())
	g.Eventually(held).Should(Equal("none"))
	s.settledOn(t, image)
}

func TestBackupsOnAClaim(t *testing.T) {
	s := installed(t)
	g := newG(t)
	for _, wrong := range []string{"", "Upper", "a/b", "-a"} {
		g.Expect(s.backUp(t, func(b *v1alpha1.Backup) {
			b.PersistentVolumeClaim = &v1alpha1.BackupClaim{ClaimName: wrong}
		})).NotTo(Succeed(), wrong)
	}
	g.Expect(s.backUp(t, func(b *v1alpha1.Backup) {
		b.PersistentVolumeClaim, b.Request = &v1alpha1.BackupClaim{ClaimName: "backups"}, "on-the-claim"
	})).To(Succeed())
	set := &appsv1.Deployment{}
	g.Eventually(s.exists(t, set, render.BackupsName)).Should(Succeed())
	g.Expect(set.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim.ClaimName).To(Equal("backups"))
	g.Eventually(s.exists(t, &corev1.Secret{}, render.BackupsSecret)).Should(Succeed())

	trusts := func(who, file, whom, name string, usage x509.ExtKeyUsage) {
		var held corev1.Secret
		g.Expect(s.exists(t, &held, who)()).To(Succeed())
		roots := x509.NewCertPool()
		g.Expect(roots.AppendCertsFromPEM(held.Data[file])).To(BeTrue())
		_, err := s.leaf(t, whom).Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}})
		g.Expect(err).NotTo(HaveOccurred(), "%s does not trust %s", who, whom)
	}
	trusts(render.Northbound.Secret, "ca.crt", render.BackupsSecret, "", x509.ExtKeyUsageClientAuth)
	trusts(render.BackupsSecret, "ca.crt", render.Northbound.Secret, render.Northbound.Service, x509.ExtKeyUsageServerAuth)
	trusts(render.BackupsSecret, certs.AdminTrustFile, render.Northbound.Secret, "", x509.ExtKeyUsageClientAuth)
	trusts(render.Northbound.Secret, "ca.crt", render.BackupsSecret, adminapi.ArchiveName, x509.ExtKeyUsageServerAuth)

	pod := s.addPod(t, "backups-0", render.BackupsName, node, "192.0.2.1", "")
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: `persistentvolumeclaim "backups" not found`}}
	g.Expect(s.admin.Status().Update(t.Context(), pod)).To(Succeed())
	s.members["nb"].set(func(status *adminapi.Status) {
		status.Backups = []adminapi.Backup{{Name: "b3.db", Time: time.Unix(700, 0), Request: "on-the-claim"}}
	})
	g.Eventually(s.condition(t, "Degraded")).Should(And(ContainSubstring(`persistentvolumeclaim "backups" not found`),
		ContainSubstring("repair the claim "+testNamespace+"/backups")))
	g.Expect(s.condition(t, "Available")()).To(HavePrefix("True"))
	g.Eventually(s.condition(t, "Progressing")).Should(ContainSubstring("backup on-the-claim waits for claim backups"))
	northd := s.named(&appsv1.Deployment{}, render.NorthdName)
	for replicas, available := range []string{"False", "True"} {
		s.settle(t, northd, int32(replicas))
		g.Eventually(s.condition(t, "Available")).Should(HavePrefix(available), "the pending backup has no influence")
	}

	archive := &fakeArchive{}
	archive.set(func(status *adminapi.Status) { status.BackupFailure = "permission denied" })
	s.world.members.serve(adminapi.PortArchive, s.mount(render.BackupsSecret), adminapi.ArchiveHandler(archive))
	t.Cleanup(func() { s.world.members.close(adminapi.PortArchive) })
	s.settle(t, s.named(&appsv1.Deployment{}, render.BackupsName), 1)
	s.setReady(t, pod, true)
	g.Eventually(s.condition(t, "Degraded")).Should(ContainSubstring("backups on the claim backups fail: permission denied"))
	archive.set(func(status *adminapi.Status) {
		*status = adminapi.Status{Backups: []adminapi.Backup{{Name: "c1.db", Time: time.Unix(800, 0), Rows: 9, Request: "on-the-claim"}}}
	})
	g.Eventually(func() bool { return s.cluster(t).Status.Northbound.Requested("on-the-claim") }).Should(BeTrue())
	g.Eventually(s.condition(t, "Degraded")).Should(HavePrefix("False"))
	nb := s.cluster(t).Status.Northbound
	g.Expect(nb.LastBackup.Name).To(Equal("b3.db"))
	g.Expect(nb.LastBackupOnClaim.Name + nb.LastBackupOnClaim.PersistentVolumeClaim + nb.LastBackupOnClaim.Node).To(Equal("c1.dbbackups"))

	g.Expect(s.backUp(t, func(b *v1alpha1.Backup) { b.PersistentVolumeClaim, b.Request = nil, "" })).To(Succeed())
	for name, o := range map[string]client.Object{render.BackupsName: set, render.BackupsSecret: &corev1.Secret{}} {
		g.Eventually(func() bool { return apierrors.IsNotFound(s.exists(t, o, name)()) }).Should(BeTrue(), name)
	}
	g.Expect(s.admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0))).To(Succeed())
	s.members["nb"].set(func(status *adminapi.Status) { status.Backups = nil })
	g.Eventually(func() *v1alpha1.BackupStatus { return s.cluster(t).Status.Northbound.LastBackupOnClaim }).Should(BeNil())
}
