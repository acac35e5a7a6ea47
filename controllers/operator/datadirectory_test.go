// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/testing/gate"
)

func TestDatabasesMoveToAnotherDirectory(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s := newInstallation(t)
	w := s.atWork(t)
	g := newG(t)
	recorded := func() []string { return s.cluster(t).Status.DataDirectories }
	mounts := func(workload string) (paths []string) {
		set := &appsv1.StatefulSet{}
		g.Expect(s.exists(t, set, workload)()).To(Succeed())
		for _, v := range set.Spec.Template.Spec.Volumes {
			if v.Name == "data" || v.Name == "previous-data" {
				paths = append(paths, v.HostPath.Path)
			}
		}
		return paths
	}
	g.Expect(recorded()).To(Equal([]string{"/etc/origin/ovn"}))
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) {
		spec.Central.DataDirectory, spec.Upgrade.Mode = "/var/lib/ovn", v1alpha1.UpgradePaused
	})
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("False ReplacingPaused"))
	g.Expect(recorded()).To(Equal([]string{"/etc/origin/ovn", "/var/lib/ovn"}))
	for _, workload := range []string{render.NorthboundName, render.SouthboundName} {
		g.Eventually(func() []string { return mounts(workload) }).Should(Equal([]string{"/var/lib/ovn", "/etc/origin/ovn"}))
	}
	g.Expect(w.history()).To(BeEmpty())

	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.Upgrade.Mode = v1alpha1.UpgradeAutomatic })
	g.Eventually(recorded).Should(Equal([]string{"/var/lib/ovn"}))
	g.Eventually(func() bool { return s.complete(t) }).Should(BeTrue())
	for _, workload := range []string{render.NorthboundName, render.SouthboundName} {
		g.Eventually(func() []string { return mounts(workload) }).Should(Equal([]string{"/var/lib/ovn"}))
	}
	g.Expect(w.history()).To(Equal(forward[4:6]), "each member restarts once")
}
